"""What one forward pass of pre-training sees, made from instances.

Dimension key: T tokens of the batch, R rows, K target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.nn.rows import Rows

if TYPE_CHECKING:
    from bertsmith.corpus.instances import Instance


@dataclass(frozen=True)
class PretrainBatch:
    ids_T: Tensor  # corrupted
    rows: Rows
    segments_T: Tensor
    target_positions_K: Tensor  # indices into T
    target_ids_K: Tensor
    is_next_R: Tensor | None  # bool; None without sentence pairs


def collate(instances: Sequence["Instance"], device: torch.device | str | None = None) -> PretrainBatch:
    """One batch of the instances, longest first, so that attention's buckets are slices of it."""
    if not instances:
        raise InputError("an empty batch: no instance at all; is the corpus empty?")
    instances = sorted(instances, key=lambda instance: -len(instance.ids))  # stable: equal ones keep their order
    rows = Rows.of([len(instance.ids) for instance in instances], device)
    starts = np.cumsum([0, *rows.lengths[:-1]])
    positions_K = np.concatenate(
        [instance.positions + start for instance, start in zip(instances, starts, strict=True)]
    )
    is_next = [instance.is_next for instance in instances]
    if None in is_next and any(value is not None for value in is_next):
        raise InputError("a batch of instances with and without a sentence pair; make all of one kind")
    return PretrainBatch(
        ids_T=_tensor([instance.ids for instance in instances], rows.device),
        rows=rows,
        segments_T=_tensor([instance.segments for instance in instances], rows.device),
        target_positions_K=_tensor([positions_K], rows.device),
        target_ids_K=_tensor([instance.targets for instance in instances], rows.device),
        is_next_R=None if None in is_next else torch.tensor(is_next, dtype=torch.bool, device=rows.device),
    )


def _tensor(arrays: Sequence[np.ndarray], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64, copy=False)).to(device)
