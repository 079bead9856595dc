"""One named part of a loss. A step's loss is the weighted sum of each term's sum over its count in the whole step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Term:
    """`sum` is the summed loss (a scalar to differentiate), `count` its targets, `correct` how many were right."""

    name: str
    weight: float
    sum: Tensor
    count: int
    correct: Tensor | None = None
