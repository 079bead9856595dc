"""How the sequences of a batch lie in memory: tokens end to end, and `Rows`, which says where each begins and ends.

Two kinds: `Rows.of(lengths)` has no padding at all; `Rows.padded(keep_BL)` is for callers who bring padded tensors (and
for export): every row has length L and keys that are not kept are never attended to. Only this file and
attention.py know.

Attention wants dense blocks, so rows are put into few buckets, longest first. Where the batch was made in that order
(as `collate` does), a bucket is a slice; only buckets of unequal rows are filled up, which is a gather. Between the
encoder's first and last layer there may be more tokens than rows have (`rounded`); attention looks past them.

Dimension key: T tokens of the batch, R rows, L longest row, B padded rows, P slots of a bucket (rows times longest).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.errors import InputError

# A run of equal rows with this share of the batch's tokens gets a dense call of its own, without a mask.
WORTH_A_CALL = 1 / 8
# In a bucket of unequal rows the shortest has at least this share of the longest one's tokens ...
SHORTEST_SHARE = 2 / 3
# ... except that rows up to this length stay together: splitting them saves nothing.
ALL_SHORT = 32
# For every new shape of a bf16 product oneDNN makes a kernel, 2 to 7 ms for a layer's, and it keeps the last 1,024.
ROUND = 64


@dataclass(frozen=True)
class Bucket:
    """Rows that take one dense attention call; the tokens of the buckets, in turn, are those of the ordered batch."""

    rows: int
    longest: int
    tokens: int  # how many of the batch's tokens are in it
    keep_RL: Tensor | None  # True at real tokens; None where every row is as long as the longest
    slot_tokens_P: Tensor | None = (
        None  # for each slot the token (within the bucket) that fills it; None: no filling up
    )
    token_slots_T: Tensor | None = None  # for each token its slot


def rounded(x_TD: Tensor) -> Tensor:
    """In bf16 on a CPU: with rows of zeros behind the last one, up to a multiple of ROUND, so that few shapes occur."""
    extra = -len(x_TD) % ROUND if x_TD.device.type == "cpu" and torch.is_autocast_enabled("cpu") else 0
    return functional.pad(x_TD, (0, 0, 0, extra)) if extra else x_TD


class Rows:
    """The layout of one batch. `lengths` are those in memory: with padding, all equal."""

    def __init__(self, lengths: tuple[int, ...], device: torch.device | str | None, keep_BL: Tensor | None):
        self.lengths = lengths
        self.count = len(lengths)
        self.total = sum(lengths)
        self.longest = max(lengths)
        self.device = torch.device(device or "cpu")
        self.keep_BL = keep_BL

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str | None = None) -> "Rows":
        """Rows of these lengths, end to end. InputError for an empty batch or an empty row."""
        lengths = tuple(int(length) for length in lengths)
        if not lengths:
            raise InputError("an empty batch: no row at all; at least one text is needed")
        for row, length in enumerate(lengths):
            if length < 1:
                raise InputError(f"row {row} of the batch is empty; every row needs at least one token")
        return cls(lengths, device, None)

    @classmethod
    def padded(cls, keep_BL: Tensor) -> "Rows":
        """The padded layout: B rows of L tokens, of which those where `keep_BL` is True are real."""
        if keep_BL.dim() != 2 or 0 in keep_BL.shape:
            raise InputError(f"a mask of shape [rows, tokens] was expected, found {list(keep_BL.shape)}")
        keep_BL = keep_BL.bool()
        if not torch.compiler.is_compiling():
            empty = (~keep_BL.any(1)).nonzero()
            if len(empty):
                raise InputError(
                    f"row {int(empty[0])} of the batch is padding only; every row needs at least one token"
                )
        batch, length = keep_BL.shape
        return cls((length,) * batch, keep_BL.device, keep_BL)

    def __repr__(self) -> str:
        kind = "padded" if self.keep_BL is not None else "end to end"
        return f"Rows({self.count} rows, {self.total} tokens, {kind}, on {self.device})"

    @property
    def equal(self) -> bool:
        return self.total == self.longest * self.count

    @cached_property
    def positions(self) -> Tensor:
        """[T]: each token's position inside its row."""
        if self.equal:
            return torch.arange(self.longest, device=self.device).repeat(self.count)
        position = torch.arange(self.total)
        return (position - torch.repeat_interleave(self._starts, torch.tensor(self.lengths))).to(self.device)

    @cached_property
    def starts(self) -> Tensor:
        """[R]: where each row begins among the T tokens."""
        return self._starts.to(self.device)

    @cached_property
    def bounds(self) -> Tensor:
        """[R + 1] int32: starts and the end, as variable-length kernels want them."""
        return torch.cat([self._starts, torch.tensor([self.total])]).to(self.device, torch.int32)

    def row_of(self, token: int) -> int:
        """The row that the batch's token number `token` belongs to."""
        return int(torch.searchsorted(self._starts, token, right=True)) - 1

    @cached_property
    def _starts(self) -> Tensor:
        lengths = torch.tensor(self.lengths)
        return lengths.cumsum(0) - lengths

    @cached_property
    def order(self) -> tuple[Tensor, Tensor] | None:
        """([T] tokens with the rows longest first, [T] the way back), or None if they already lie so."""
        if all(a >= b for a, b in zip(self.lengths, self.lengths[1:], strict=False)):
            return None
        lengths = torch.tensor(self.lengths)
        by_length = torch.argsort(lengths, descending=True, stable=True)
        ordered = lengths[by_length]
        offsets = self._starts[by_length] - (ordered.cumsum(0) - ordered)
        forth = torch.arange(self.total) + torch.repeat_interleave(offsets, ordered)
        back = torch.empty_like(forth)
        back[forth] = torch.arange(self.total)
        return forth.to(self.device), back.to(self.device)

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The rows, longest first, in few dense blocks."""
        if self.keep_BL is not None:
            full = not torch.compiler.is_compiling() and bool(self.keep_BL.all())
            return [Bucket(self.count, self.longest, self.total, None if full else self.keep_BL)]
        if self.equal:
            return [Bucket(self.count, self.longest, self.total, None)]
        return [self._bucket(group) for group in _grouped(sorted(self.lengths, reverse=True))]

    def _bucket(self, lengths: list[int]) -> Bucket:
        longest, total, count = lengths[0], sum(lengths), len(lengths)
        if lengths[-1] == longest:
            return Bucket(count, longest, total, None)
        lengths_R = torch.tensor(lengths)
        keep_RL = torch.arange(longest) < lengths_R[:, None]
        token_slots_T = keep_RL.flatten().nonzero()[:, 0]
        # Slots beyond a row's end hold its first token again: finite numbers, which the mask takes out.
        starts_R = lengths_R.cumsum(0) - lengths_R
        slot_tokens_RL = torch.where(keep_RL, starts_R[:, None] + torch.arange(longest), starts_R[:, None])
        device = self.device
        return Bucket(
            count, longest, total, keep_RL.to(device), slot_tokens_RL.flatten().to(device), token_slots_T.to(device)
        )


def _grouped(lengths: list[int]) -> list[list[int]]:
    """Descending lengths cut into groups: long runs of equal rows by themselves, the others with what is near in
    length."""
    groups: list[list[int]] = []
    loose: list[int] = []
    start, total = 0, sum(lengths)
    while start < len(lengths):
        length = lengths[start]
        run = lengths[start : start + lengths.count(length)]
        start += len(run)
        if len(run) > 1 and len(run) * length >= WORTH_A_CALL * total:
            groups += [loose] if loose else []
            groups.append(run)
            loose = []
        elif loose and length < SHORTEST_SHARE * loose[0] and loose[0] > ALL_SHORT:
            groups.append(loose)
            loose = run
        else:
            loose = loose + run
    return groups + ([loose] if loose else [])


def lay_out(sequences: Sequence[Sequence[int]], device: torch.device | str | None = None) -> tuple[Tensor, Rows]:
    """The ids of all sequences end to end, and where each lies.

    >>> ids_T, rows = lay_out([[5, 6, 7], [8]])
    >>> ids_T.tolist(), rows.lengths, rows.positions.tolist()
    ([5, 6, 7, 8], (3, 1), [0, 1, 2, 0])
    """
    rows = Rows.of([len(sequence) for sequence in sequences], device)
    ids_T = torch.cat([torch.as_tensor(sequence, dtype=torch.int64) for sequence in sequences])
    return ids_T.to(rows.device), rows
