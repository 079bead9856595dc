"""Scores of label predictions: accuracy, macro F1, Matthews correlation, confusion matrix.

The three numbers are those of scikit-learn (accuracy_score, f1_score(average="macro", zero_division=0) and
matthews_corrcoef) to the last digit, in a few lines of numpy. Where a score is a matter of definition (only one label
predicted, a label that occurs nowhere) it has the same value as there, and `notes` says so in words; none is ever NaN.

Dimension key: C labels; the confusion matrix is counts_CC[true, predicted].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.errors import InputError

MOST_SHOWN = 20  # labels of a confusion matrix on a screen
METRICS = ("accuracy", "macro_f1", "matthews")


@dataclass(frozen=True)
class LabelScores:
    """What `label_scores` found; `collapsed`: every prediction is the same label, and not every truth."""

    accuracy: float
    macro_f1: float  # mean over the labels that occur, as truth or as prediction
    matthews: float  # 0 where truth or predictions are constant
    rows: int
    collapsed: bool
    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]  # [true][predicted]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, object]:
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "matthews": self.matthews,
            "rows": self.rows,
            "collapsed": self.collapsed,
            "labels": list(self.labels),
            "confusion": [list(row) for row in self.confusion],
            "notes": list(self.notes),
        }


def label_scores(truth: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> LabelScores:
    """Scores of `predicted` against `truth`, both label names out of `labels`.

    >>> scores = label_scores(["yes", "no", "no"], ["yes", "no", "yes"], ["no", "yes"])
    >>> round(scores.accuracy, 3), scores.confusion
    (0.667, ((1, 1), (0, 1)))
    """
    if len(truth) != len(predicted):
        raise InputError(
            f"{len(truth)} true labels and {len(predicted)} predictions; one prediction for each row was expected"
        )
    if not truth:
        raise InputError("no rows to score: at least one labelled row is needed")
    counts_CC = confusion_matrix(truth, predicted, labels)
    return LabelScores(
        accuracy=float(np.trace(counts_CC) / len(truth)),
        # The last digit of a mean depends on the order it is summed in, and scikit-learn's is that of the names.
        macro_f1=macro_f1(counts_CC[np.ix_(*[np.argsort(labels)] * 2)]),
        matthews=matthews(counts_CC),
        rows=len(truth),
        collapsed=len(set(predicted)) == 1 < len(set(truth)),
        labels=tuple(labels),
        confusion=tuple(tuple(int(count) for count in row) for row in counts_CC),
        notes=_notes(counts_CC, labels),
    )


def confusion_matrix(truth: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """counts_CC[true, predicted] in the order of `labels`; a name outside `labels` is refused."""
    index = {label: number for number, label in enumerate(labels)}
    for what, names in (("true label", truth), ("prediction", predicted)):
        strange = sorted(set(names) - set(index))
        if strange:
            raise InputError(f"{what} {strange[0]!r} is none of the labels {', '.join(map(repr, labels))}")
    pairs = np.array([index[name] for name in truth]) * len(index) + np.array([index[name] for name in predicted])
    return np.bincount(pairs, minlength=len(index) ** 2).reshape(len(index), len(index))


def macro_f1(counts_CC: np.ndarray) -> float:
    """Mean F1 over the labels that occur as truth or prediction; a label never right has 0."""
    right, support = np.diagonal(counts_CC).astype(float), counts_CC.sum(0).astype(float) + counts_CC.sum(1)
    occurs = support > 0
    return float(np.average(2 * right[occurs] / support[occurs]))


def matthews(counts_CC: np.ndarray) -> float:
    """Matthews correlation for any number of labels (Gorodkin, 2004); 0 where truth or predictions are constant."""
    true, said = counts_CC.sum(axis=1, dtype=np.float64), counts_CC.sum(axis=0, dtype=np.float64)
    rows = said.sum()
    both = np.trace(counts_CC, dtype=np.float64) * rows - np.dot(true, said)
    spread = (rows**2 - np.dot(said, said)) * (rows**2 - np.dot(true, true))
    return float(both / np.sqrt(spread)) if spread else 0.0


def _notes(counts_CC: np.ndarray, labels: Sequence[str]) -> tuple[str, ...]:
    true, said = counts_CC.sum(1), counts_CC.sum(0)
    notes = []
    if (said > 0).sum() == 1:
        notes.append(f"every prediction is {labels[int(said.argmax())]!r}: Matthews is 0 by definition")
    if (true > 0).sum() == 1:
        notes.append(
            f"every true label is {labels[int(true.argmax())]!r}: Matthews is 0 by definition, accuracy says little"
        )
    absent = [repr(label) for label, count in zip(labels, true + said, strict=True) if not count]
    if absent:
        notes.append(f"neither true nor predicted anywhere, so left out of macro F1: {', '.join(absent)}")
    return tuple(notes)


def show_scores(scores: LabelScores) -> str:
    """The scores and the confusion matrix (rows true, columns predicted) as text for a screen."""
    lines = [
        f"rows      {scores.rows:,}",
        f"accuracy  {scores.accuracy:.4f}",
        f"macro F1  {scores.macro_f1:.4f}",
        f"Matthews  {scores.matthews:.4f}",
    ]
    if len(scores.labels) > MOST_SHOWN:
        lines.append(f"confusion matrix: {len(scores.labels)} labels are too many to show; --json has it")
    else:
        width = (
            max(9, *(len(label) for label in scores.labels), *(len(str(n)) for row in scores.confusion for n in row))
            + 1
        )
        lines += [
            "",
            "true \\ predicted".ljust(max(width, 17)) + "".join(label.rjust(width) for label in scores.labels),
        ]
        for label, row in zip(scores.labels, scores.confusion, strict=True):
            lines.append(label.ljust(max(width, 17)) + "".join(str(count).rjust(width) for count in row))
    return "\n".join(lines + [f"note: {note}" for note in scores.notes])
