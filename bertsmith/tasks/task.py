"""What a fine-tuned model folder says about its task, so that `evaluate` and `predict` read files as training did."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bertsmith.base.config import from_mapping, to_mapping
from bertsmith.errors import TaskError
from bertsmith.tasks.readers.table import Columns


@dataclass(frozen=True)
class Task:
    """Saved under "task" in bertsmith.json. A label's place in `labels` is its class number; files name labels."""

    kind: Literal["label"] = "label"
    pairs: bool = False  # pairs of texts, or single texts
    text: str | None = None  # column: a name, or a number from 1 in tables without header; None where no table was read
    pair: str | None = None
    label: str | None = None
    header: bool = True
    format: str | None = None  # of the training table; None where no file was read
    labels: tuple[str, ...] = ()
    max_length: int = 128  # tokens; longer texts are cut here as they were in training

    @property
    def columns(self) -> Columns:
        """Where to look in the next file; its format goes by its own suffix."""
        return Columns(self.text, self.pair, self.label, self.header)

    def to_mapping(self) -> dict[str, Any]:
        return to_mapping(self)


def task_of(provenance: Mapping[str, Any], where: str) -> Task | None:
    """The task in a model folder's provenance, or None: a folder from elsewhere has labels but no columns."""
    saved = provenance.get("task")
    return None if saved is None else from_mapping(Task, saved, where=f"{where}: task in bertsmith.json")


def label_names(labels: list[str] | tuple[str, ...] | None, where: str) -> tuple[str, ...]:
    """The label names of a loaded folder; TaskError if it has no classifier."""
    if not labels:
        raise TaskError(
            f"{where}: this model folder has no classifier with label names; fine-tune it first: bertsmith finetune"
        )
    return tuple(labels)
