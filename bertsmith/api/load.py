"""`bertsmith.load`: any model folder, ours or Hugging Face's, ready to answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertsmith.api.model import Model
from bertsmith.base.seeds import number
from bertsmith.checkpoints.folder import LoadedModel, load_model
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.nn.device import choose_device
from bertsmith.nn.heads import LabelHead
from bertsmith.nn.layers import initialise
from bertsmith.tasks.task import task_of


def load(
    folder: str | Path,
    *,
    head: Literal["label"] | None = None,
    labels: int | Sequence[str] | None = None,
    device: str = "auto",
    seed: int = 0,
) -> Model:
    """The model in `folder`, in evaluation mode, on `device` ("auto", "cpu", "cuda", ...).

    `head="label"` asks for a classifier. Without `labels` the folder must hold one. With `labels`, a number of them or
    their names in order, a folder that holds a head for exactly these keeps it; otherwise a fresh one, drawn from
    `seed`, takes the place of what was there. Nothing is ever downloaded.

    Raises FileError or CheckpointError when the folder is missing, damaged, does not fit together, or lacks the head
    asked for; ConfigError when `head` and `labels` contradict each other.

        model = bertsmith.load("runs/demo/model")
        model.fill("The [MASK] sat.", top=5)
        net = bertsmith.load("runs/demo/model", head="label", labels=["bad", "good"]).module
    """
    names = _label_names(head, labels)
    found = load_model(Path(folder))
    label, kept = found.label, found.labels
    if head == "label" and names is None and label is None:
        raise CheckpointError(
            f"{folder}: has no label head; say which labels a fresh one should have: labels=2 or labels=['bad', 'good']"
        )
    if names is not None and not _same_labels(found, names, counted=isinstance(labels, int)):
        label, kept = _fresh_head(found, len(names), seed), names
    place = choose_device(device)
    for part in (found.encoder, found.mlm, found.nsp, label):
        if part is not None:
            part.to(place).eval()
    task = task_of(found.provenance, str(folder))
    return Model(
        folder=Path(folder),
        encoder=found.encoder,
        tokenizer=found.tokenizer,
        mlm=found.mlm,
        nsp=found.nsp,
        head=label,
        labels=kept,
        task=task,
    )


def _label_names(head: str | None, labels: int | Sequence[str] | None) -> list[str] | None:
    if head not in (None, "label"):
        raise ConfigError(f"head={head!r}: the only head that can be asked for is 'label'")
    if labels is None:
        return None
    if head is None:
        raise ConfigError('labels were given without a head; write head="label"')
    if isinstance(labels, str):
        raise ConfigError(f"labels={labels!r}: a number or a list of names was expected")
    names = [str(number) for number in range(labels)] if isinstance(labels, int) else [str(name) for name in labels]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"labels={labels!r}: two or more labels, all different, were expected")
    return names


def _same_labels(found: LoadedModel, names: Sequence[str], *, counted: bool) -> bool:
    if found.label is None or found.labels is None:
        return False
    return len(found.labels) == len(names) if counted else list(found.labels) == list(names)


def _fresh_head(found: LoadedModel, labels: int, seed: int) -> LabelHead:
    found.encoder.add_pooler(number(seed, "pooler"))  # a masked LM trained alone has none
    head = LabelHead(found.config.width, labels, found.config.dropout)
    initialise(head, number(seed, "head"))
    return head
