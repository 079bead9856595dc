"""A model folder: config.json, model.safetensors, the tokenizer's files, and bertsmith.json (its history).

What does not belong together is refused before any memory is taken: names, shapes and sizes are compared from headers.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from bertsmith.base.files import fresh_folder
from bertsmith.checkpoints.hugging_face import (
    Weights,
    architecture_of,
    config_from_json,
    config_to_json,
    find_weights,
    labels_from_json,
    model_type_of,
    read_json,
)
from bertsmith.checkpoints.names import OPTIONAL_PARTS, TABLES, Plan, expand, part_of, plan
from bertsmith.errors import BertsmithError, CheckpointError, FileError
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.models.catalog import FAMILIES, parameter_count
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead
from bertsmith.text.tokenizer import Tokenizer

PROVENANCE_FILE = "bertsmith.json"
FORMAT = 1


@dataclass
class LoadedModel:
    config: BertConfig
    encoder: Bert
    mlm: MlmHead | None
    nsp: NspHead | None
    label: LabelHead | None
    labels: list[str] | None
    tokenizer: Tokenizer
    provenance: dict[str, Any]
    architecture: str
    missing: list[str] = field(default_factory=list)  # of pooler, mlm, nsp, label: what the folder lacks
    folder: Path | None = None


def save_model(
    folder: Path,
    *,
    encoder: Bert,
    mlm: MlmHead | None = None,
    nsp: NspHead | None = None,
    label: LabelHead | None = None,
    labels: Sequence[str] | None = None,
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
) -> None:
    """Writes a whole model folder aside and renames it into place; a folder that stood there is replaced.

    `labels` are the names of the label head's classes, in order. `provenance` is kept in bertsmith.json as it is.
    """
    folder = Path(folder)
    heads = {"mlm": mlm, "nsp": nsp, "label": label}
    config = encoder.config
    parts = [name for name in OPTIONAL_PARTS if (encoder.pooler if name == "pooler" else heads[name]) is not None]
    _check_pieces(folder, tokenizer, config.vocab_size)
    if label is not None:
        labels = list(labels or [str(number) for number in range(label.linear.out_features)])
        if len(labels) != label.linear.out_features or len(set(labels)) < len(labels):
            raise CheckpointError(
                f"{folder}: {label.linear.out_features} different label names were expected, found {labels}"
            )
    tensors = tensors_for_hugging_face(encoder, heads)
    with_head = any(part != "pooler" for part in parts)
    if not with_head:
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    mapping = config_to_json(config, parts=parts, labels=labels, pad_id=tokenizer.vocabulary.pad_id)
    with fresh_folder(folder) as aside:
        tokenizer.save(aside, max_length=config.max_length)
        (aside / "config.json").write_text(_json(mapping), encoding="utf-8")
        written = _versions() | {"tokenizer": tokenizer.fingerprint, "provenance": dict(provenance)}
        (aside / PROVENANCE_FILE).write_text(_json(written), encoding="utf-8")
        # As bytes, because a full disk is then an OSError like any other.
        (aside / "model.safetensors").write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))


def load_model(folder: Path | str) -> LoadedModel:
    """The model in a folder, ours or Hugging Face's, on the CPU, in float32 and evaluation mode.

    Raises FileError or CheckpointError: a missing or damaged file, another family, tensors missing, left over or of the
    wrong shape, a vocabulary that does not fit.
    """
    folder = Path(folder)
    mapping = _read_mapping(folder)
    config = config_from_json(mapping, where=str(folder / "config.json"))
    weights = find_weights(folder)
    found = _plan(config, weights)
    tokenizer, written = _load_tokenizer(folder), _read_own(folder)
    _check_pieces(folder, tokenizer, config.vocab_size)
    _check_fingerprint(folder, tokenizer, written)
    labels = _labels(mapping, weights, found, folder) if "label" in found.parts else None
    encoder, heads = _build(config, found, labels, mapping)
    _fill(encoder, heads, weights, found)
    return LoadedModel(
        config=config,
        encoder=encoder,
        mlm=heads.get("mlm"),  # type: ignore[arg-type]
        nsp=heads.get("nsp"),  # type: ignore[arg-type]
        label=heads.get("label"),  # type: ignore[arg-type]
        labels=labels,
        tokenizer=tokenizer,
        provenance=written.get("provenance", {}),
        architecture=_architecture(mapping, config, found.parts),
        missing=[part for part in OPTIONAL_PARTS if part not in found.parts],
        folder=folder,
    )


def read_config(folder: Path | str) -> BertConfig:
    """The configuration in a model folder."""
    folder = Path(folder)
    return config_from_json(_read_mapping(folder), where=str(folder / "config.json"))


def describe(folder: Path | str) -> dict[str, Any]:
    """What a model folder holds, without reading its weights; what does not fit together is listed under "problems"."""
    folder = Path(folder)
    mapping = _read_mapping(folder)
    config = config_from_json(mapping, where=str(folder / "config.json"))
    problems: list[str] = []
    about: dict[str, Any] = {
        "folder": str(folder),
        "family": "bert",
        "model_type": model_type_of(config),
        "size": size_name(config),
        "config": asdict(config),
    }
    try:
        weights = find_weights(folder)
        found = _plan(config, weights)
        labels = _labels(mapping, weights, found, folder) if "label" in found.parts else None
        about |= {
            "architecture": _architecture(mapping, config, found.parts),
            "parameters": parameter_count(config, pooler="pooler" in found.parts),
            "heads": [part for part in found.parts if part != "pooler"],
            "pooler": "pooler" in found.parts,
            "labels": labels,
            "weights": {
                "file": weights.path.name,
                "bytes": weights.size,
                "types": sorted(set(weights.types.values())),
            },
        }
    except (CheckpointError, FileError) as error:
        problems.append(str(error))
    written = _read_own(folder)
    try:
        tokenizer = _load_tokenizer(folder)
        normalizer = tokenizer.normalizer
        about["tokenizer"] = {
            "pieces": len(tokenizer.vocabulary),
            "preset": normalizer.preset,
            "lowercase": normalizer.lowercase,
            "fingerprint": tokenizer.fingerprint,
        }
        _check_pieces(folder, tokenizer, config.vocab_size)
        _check_fingerprint(folder, tokenizer, written)
    except BertsmithError as error:
        problems.append(str(error))
    about["provenance"] = written.get("provenance", {})
    about["versions"] = {name: value for name, value in written.items() if name not in ("provenance", "tokenizer")}
    return about | {"fits": not problems, "problems": problems}


def size_name(config: BertConfig) -> str | None:
    """The catalog's first name for these sizes, if it has one."""
    for name, size in FAMILIES["bert"].sizes.items():
        if all(getattr(config, key) == value for key, value in size.items()):
            return name
    return None


def tensors_for_hugging_face(encoder: Bert, heads: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """All weights under Hugging Face's names, copied to the CPU."""
    config = encoder.config
    state = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    for part, head in heads.items():
        if head is not None:
            state |= {f"{part}.{name}": tensor for name, tensor in head.state_dict().items()}
    state.pop("mlm.table_VD", None)  # the word table under its second name
    tensors: dict[str, Tensor] = {}
    table = expand(TABLES[model_type_of(config)], config.depth)
    for name, tensor in state.items():
        if name not in table:
            raise CheckpointError(f"the tensor {name} has no Hugging Face name; checkpoints/names.py lacks it")
        theirs = table[name]
        for part_name, part in zip(theirs, tensor.detach().chunk(len(theirs)), strict=True):
            tensors[part_name] = part.to("cpu", copy=True).contiguous()
    return tensors


def _plan(config: BertConfig, weights: Weights) -> Plan:
    found = plan(weights.shapes, TABLES[model_type_of(config)], config.depth, where=str(weights.path))
    with torch.device("meta"):
        encoder = Bert(config, pooler="pooler" in found.parts)
        heads = {"mlm": MlmHead(encoder.embed.words.weight, norm_eps=config.norm_eps), "nsp": NspHead(config.width)}
    shapes = {f"encoder.{name}": tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    for part, head in heads.items():
        shapes |= {f"{part}.{name}": tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    wrong = []
    for ours, theirs in found.sources.items():
        if part_of(ours) == "label":
            continue  # how many labels there are is for config.json to say
        first, *rest = shapes[ours]
        expected = (first // len(theirs), *rest)
        wrong += [(name, weights.shapes[name], expected) for name in theirs if weights.shapes[name] != expected]
    if wrong:
        listed = "; ".join(
            f"{name} is {list(has)}, by config.json {list(expected)}" for name, has, expected in wrong[:6]
        )
        raise CheckpointError(f"{weights.path}: {len(wrong)} of wrong shape: {listed}")
    return found


def _labels(mapping: Mapping[str, Any], weights: Weights, found: Plan, folder: Path) -> list[str]:
    [name] = found.sources["label.linear.weight"]
    count, *_ = shape = weights.shapes[name]
    labels = labels_from_json(mapping, where=str(folder / "config.json"))
    if labels is None:  # Hugging Face leaves two labels without names out
        labels = [f"LABEL_{number}" for number in range(count)]
    if len(labels) != count or shape != (count, mapping["hidden_size"]):
        raise CheckpointError(
            f"{folder}: config.json names {len(labels)} labels, {name} in the weights is {list(shape)}; they must agree"
        )
    return labels


def _build(
    config: BertConfig, found: Plan, labels: list[str] | None, mapping: Mapping[str, Any]
) -> tuple[Bert, dict[str, nn.Module]]:
    with torch.device("meta"):
        encoder = Bert(config, pooler="pooler" in found.parts)
    encoder.to_empty(device="cpu")
    heads: dict[str, nn.Module] = {}
    if "mlm" in found.parts:
        heads["mlm"] = MlmHead(encoder.embed.words.weight, norm_eps=config.norm_eps)
    if "nsp" in found.parts:
        heads["nsp"] = NspHead(config.width)
    if labels is not None:
        dropout = mapping.get("classifier_dropout")
        heads["label"] = LabelHead(config.width, len(labels), config.dropout if dropout is None else float(dropout))
    for module in (encoder, *heads.values()):
        module.eval()
    return encoder, heads


@torch.no_grad()
def _fill(encoder: Bert, heads: Mapping[str, nn.Module], weights: Weights, found: Plan) -> None:
    parameters = {f"encoder.{name}": parameter for name, parameter in encoder.named_parameters()}
    for part, head in heads.items():
        parameters |= {f"{part}.{name}": parameter for name, parameter in head.named_parameters()}
    try:
        with weights.open() as read:
            for ours, theirs in found.sources.items():
                for target, name in zip(parameters[ours].chunk(len(theirs)), theirs, strict=True):
                    target.copy_(read(name))
            if found.tied_decoder is not None and "mlm" in heads:
                decoder = read(found.tied_decoder)
                words = parameters["encoder.embed.words.weight"]
                if decoder.shape != words.shape or not torch.equal(decoder.to(words.dtype), words):
                    raise CheckpointError(
                        f"{weights.path}: {found.tied_decoder} is not the word table; only tied decoders can be read"
                    )
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{weights.path}: cannot be read ({error}); copy or download it again") from error


def _read_mapping(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: {'is a file' if folder.exists() else 'no such folder'}; a model folder was expected"
        )
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder}: not a model folder: it has no config.json")
    return read_json(folder / "config.json")


def read_provenance(folder: Path) -> dict[str, Any]:
    """What bertsmith.json says about how a model came to be; nothing where there is none."""
    found: dict[str, Any] = _read_own(folder).get("provenance", {})
    return found


def _read_own(folder: Path) -> dict[str, Any]:
    path = folder / PROVENANCE_FILE
    found = read_json(path) if path.exists() else {}
    if not isinstance(found.get("tokenizer", ""), str) or not isinstance(found.get("provenance", {}), dict):
        raise CheckpointError(f"{path}: not as bertsmith writes it; without this file the model can be read")
    return found


def _load_tokenizer(folder: Path) -> Tokenizer:
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        raise CheckpointError(f"{folder}: no tokenizer; vocab.txt or tokenizer.json was expected beside the weights")
    return Tokenizer.load(folder)


def _check_pieces(folder: Path, tokenizer: Tokenizer, table_rows: int) -> None:
    pieces = tokenizer.vocabulary.pieces
    if len(pieces) > table_rows:
        raise CheckpointError(
            f"{folder}: the tokenizer has {len(pieces):,} pieces, the embedding table {table_rows:,} rows; "
            f"{pieces[table_rows]!r} is the first piece without one. "
            "Use the vocabulary these weights were trained with."
        )


def _check_fingerprint(folder: Path, tokenizer: Tokenizer, written: Mapping[str, Any]) -> None:
    trained = written.get("tokenizer")
    if trained is not None and trained != tokenizer.fingerprint:
        raise CheckpointError(
            f"{folder}: its tokenizer is not the one these weights were saved with (fingerprint "
            f"{tokenizer.fingerprint[:12]}, by {PROVENANCE_FILE} {trained[:12]}); put the old vocabulary back"
        )


def _architecture(mapping: Mapping[str, Any], config: BertConfig, parts: Sequence[str]) -> str:
    named = mapping.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else architecture_of(config, parts)


def _versions() -> dict[str, Any]:
    try:
        own = metadata.version("bertsmith")
    except metadata.PackageNotFoundError:  # run from the sources
        own = "unknown"
    return {"format": FORMAT, "bertsmith": own, "torch": torch.__version__, "python": platform.python_version()}


def _json(mapping: Mapping[str, Any]) -> str:
    return json.dumps(mapping, ensure_ascii=False, indent=2) + "\n"
