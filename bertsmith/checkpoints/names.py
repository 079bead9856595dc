"""Tensor names, ours beside Hugging Face's: one literal two-way table for each shape, and what applies it.

An entry of three is our one query-key-value matrix, which they keep as three. `{i}` is the layer. Known leftovers
(buffers, aliases of the word table, the gamma and beta of old folders) are listed here; any other name on either side
is an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertsmith.errors import CheckpointError

Table = Mapping[str, tuple[str, ...]]

EMBEDDINGS: Table = {
    "encoder.embed.words.weight": ("bert.embeddings.word_embeddings.weight",),
    "encoder.embed.positions.weight": ("bert.embeddings.position_embeddings.weight",),
    "encoder.embed.segments.weight": ("bert.embeddings.token_type_embeddings.weight",),
}
ATTENTION: Table = {
    "encoder.layers.{i}.attention.qkv.weight": (
        "bert.encoder.layer.{i}.attention.self.query.weight",
        "bert.encoder.layer.{i}.attention.self.key.weight",
        "bert.encoder.layer.{i}.attention.self.value.weight",
    ),
    "encoder.layers.{i}.attention.qkv.bias": (
        "bert.encoder.layer.{i}.attention.self.query.bias",
        "bert.encoder.layer.{i}.attention.self.key.bias",
        "bert.encoder.layer.{i}.attention.self.value.bias",
    ),
    "encoder.layers.{i}.attention.out.weight": ("bert.encoder.layer.{i}.attention.output.dense.weight",),
    "encoder.layers.{i}.attention.out.bias": ("bert.encoder.layer.{i}.attention.output.dense.bias",),
}
FEED_FORWARD: Table = {
    "encoder.layers.{i}.feed_forward.up.weight": ("bert.encoder.layer.{i}.intermediate.dense.weight",),
    "encoder.layers.{i}.feed_forward.up.bias": ("bert.encoder.layer.{i}.intermediate.dense.bias",),
    "encoder.layers.{i}.feed_forward.down.weight": ("bert.encoder.layer.{i}.output.dense.weight",),
    "encoder.layers.{i}.feed_forward.down.bias": ("bert.encoder.layer.{i}.output.dense.bias",),
}
HEADS: Table = {
    "encoder.pooler.weight": ("bert.pooler.dense.weight",),
    "encoder.pooler.bias": ("bert.pooler.dense.bias",),
    "mlm.transform.weight": ("cls.predictions.transform.dense.weight",),
    "mlm.transform.bias": ("cls.predictions.transform.dense.bias",),
    "mlm.norm.weight": ("cls.predictions.transform.LayerNorm.weight",),
    "mlm.norm.bias": ("cls.predictions.transform.LayerNorm.bias",),
    "mlm.bias": ("cls.predictions.bias",),
    "nsp.linear.weight": ("cls.seq_relationship.weight",),
    "nsp.linear.bias": ("cls.seq_relationship.bias",),
    "label.linear.weight": ("classifier.weight",),
    "label.linear.bias": ("classifier.bias",),
}
# By Hugging Face's model_type. megatron-bert is their name for the pre-norm shape.
TABLES: Mapping[str, Table] = {
    "bert": {
        **EMBEDDINGS,
        "encoder.embed.norm.weight": ("bert.embeddings.LayerNorm.weight",),
        "encoder.embed.norm.bias": ("bert.embeddings.LayerNorm.bias",),
        **ATTENTION,
        "encoder.layers.{i}.attention_norm.weight": ("bert.encoder.layer.{i}.attention.output.LayerNorm.weight",),
        "encoder.layers.{i}.attention_norm.bias": ("bert.encoder.layer.{i}.attention.output.LayerNorm.bias",),
        **FEED_FORWARD,
        "encoder.layers.{i}.output_norm.weight": ("bert.encoder.layer.{i}.output.LayerNorm.weight",),
        "encoder.layers.{i}.output_norm.bias": ("bert.encoder.layer.{i}.output.LayerNorm.bias",),
        **HEADS,
    },
    "megatron-bert": {
        **EMBEDDINGS,
        **ATTENTION,
        "encoder.layers.{i}.attention_norm.weight": ("bert.encoder.layer.{i}.attention.ln.weight",),
        "encoder.layers.{i}.attention_norm.bias": ("bert.encoder.layer.{i}.attention.ln.bias",),
        **FEED_FORWARD,
        "encoder.layers.{i}.output_norm.weight": ("bert.encoder.layer.{i}.ln.weight",),
        "encoder.layers.{i}.output_norm.bias": ("bert.encoder.layer.{i}.ln.bias",),
        "encoder.final_norm.weight": ("bert.encoder.ln.weight",),
        "encoder.final_norm.bias": ("bert.encoder.ln.bias",),
        **HEADS,
    },
}
# A part is there whole or not at all; "encoder" must be there.
PARTS = {"encoder.pooler.": "pooler", "mlm.": "mlm", "nsp.": "nsp", "label.": "label", "encoder.": "encoder"}
OPTIONAL_PARTS = ("pooler", "mlm", "nsp", "label")

# Second names of the same thing: read only where the first name is missing.
ALIASES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
# The masked LM's decoder is the word table; a folder in which it is another matrix is refused when it is read.
TIED_DECODER = "cls.predictions.decoder.weight"
BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Plan:
    """Which tensors of a file make which of ours; `parts` are the optional ones present."""

    sources: dict[str, tuple[str, ...]]  # our name -> names in the file
    parts: tuple[str, ...]
    tied_decoder: str | None  # the file's name of the decoder, if it is stored


def expand(table: Table, depth: int) -> dict[str, tuple[str, ...]]:
    """The table with every layer written out."""
    written: dict[str, tuple[str, ...]] = {}
    for ours, theirs in table.items():
        for i in range(depth) if "{i}" in ours else (0,):
            written[ours.replace("{i}", str(i))] = tuple(name.replace("{i}", str(i)) for name in theirs)
    return written


def part_of(ours: str) -> str:
    return next(part for prefix, part in PARTS.items() if ours.startswith(prefix))


def plan(names: Iterable[str], table: Table, depth: int, *, where: str) -> Plan:
    """How to read a file that holds these tensors. CheckpointError lists what is missing and what is left over."""
    found = {_canonical(name): name for name in names}
    if not any(name.startswith("bert.") for name in found):  # a bare encoder is saved without the prefix
        found = {
            name if name.startswith(("cls.", "classifier.")) else f"bert.{name}": file for name, file in found.items()
        }
    for alias, name in ALIASES.items():
        if alias in found:
            file = found.pop(alias)
            found.setdefault(name, file)
    tied_decoder = found.pop(TIED_DECODER, None)
    for buffer in BUFFERS:
        found.pop(buffer, None)
    written = expand(table, depth)
    present = {part_of(ours) for ours, theirs in written.items() if any(name in found for name in theirs)} | {"encoder"}
    sources, missing = {}, []
    for ours, theirs in written.items():
        if part_of(ours) in present:
            missing += [name for name in theirs if name not in found]
            sources[ours] = tuple(found.pop(name, "") for name in theirs)
    if missing or found:
        raise CheckpointError(
            f"{where}: {_listed(missing, 'missing')}{'; ' if missing and found else ''}{_listed(found, 'left over')}"
        )
    return Plan(sources, tuple(part for part in OPTIONAL_PARTS if part in present), tied_decoder)


def _canonical(name: str) -> str:
    for old, new in OLD_ENDINGS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _listed(names: Iterable[str], what: str) -> str:
    names = list(names)
    if not names:
        return ""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} {what}: {', '.join(names[:12])}{more}"
