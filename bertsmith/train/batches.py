"""What the loop is fed with: batches of instances for pre-training, length-grouped batches of items for fine-tuning.

Both are pure functions of a seed and a place in the data, so a resumed run sees what it would have seen.
"""

from collections.abc import Iterator, Sequence

import torch

from bertsmith.base.seeds import stream
from bertsmith.corpus.instances import Instance, Instances, Position
from bertsmith.errors import ConfigError
from bertsmith.objectives.batch import PretrainBatch, collate

POOL = 50  # batches that are sorted by length together: enough for nearly equal lengths, few enough to stay a shuffle


def by_length(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every index of `lengths` once, in batches of `size` of similar length, in a shuffled order.

    Only one batch may be smaller than `size`.

    >>> sorted(sum(by_length([3, 1, 2, 9, 8], 2, seed=0, epoch=0), []))
    [0, 1, 2, 3, 4]
    """
    if size < 1:
        raise ConfigError(f"a batch of {size} items: at least 1 was expected")
    rng = stream(seed, "by_length", epoch)
    order = [int(index) for index in rng.permutation(len(lengths))]
    batches = []
    for start in range(0, len(order), size * POOL):
        pool = sorted(order[start : start + size * POOL], key=lambda index: lengths[index])
        batches += [pool[at : at + size] for at in range(0, len(pool), size)]
    return [batches[int(at)] for at in rng.permutation(len(batches))]


class Feed:
    """The micro-batches of a pre-training run, one after another; `position` is where the next step begins.

    A step's `batch` instances are ordered by length before they are cut into micro-batches: rows of similar length lie
    together, and since each loss term is divided by its own count over the whole step, the order changes nothing else.
    """

    def __init__(self, instances: Instances, position: Position, *, batch: int, micro_batch: int, device: torch.device):
        if micro_batch < 1 or batch % micro_batch:
            raise ConfigError(f"train.batch {batch} is no multiple of train.micro_batch {micro_batch}")
        self.position = position
        self._micro_batches = self._make(instances, batch, micro_batch, device)

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> PretrainBatch:
        return next(self._micro_batches)

    def _make(
        self, instances: Instances, batch: int, micro_batch: int, device: torch.device
    ) -> Iterator[PretrainBatch]:
        for step, after in instances.stream(self.position, batch):
            step = sorted(step, key=_length, reverse=True)  # the longest first: memory peaks at the first micro-batch
            # Set before the step's last micro-batch is handed out, since the loop asks for no more until the next step.
            for start in range(0, batch, micro_batch):
                if start + micro_batch == batch:
                    self.position = after
                yield collate(step[start : start + micro_batch], device)


def pretraining_counts(batch: PretrainBatch) -> dict[str, int]:
    """How many targets each loss term of BertPretraining has in `batch`."""
    counts = {"mlm": len(batch.target_ids_K)}
    return counts if batch.is_next_R is None else {**counts, "nsp": batch.rows.count}


def _length(instance: Instance) -> int:
    return len(instance.ids)
