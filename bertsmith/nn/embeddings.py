"""What a token is before the first layer: word + learned position + segment (Devlin et al., 2018, arXiv:1810.04805, 3).

The ids are looked at before any kernel runs, because an index outside a table is a crash without a name on a GPU.

Dimension key: T tokens of the batch, D width.
"""

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.nn.dropout import dropped
from bertsmith.nn.rows import Rows


class Embeddings(nn.Module):
    """Sum of three tables, then a norm (left out with `norm_eps=None`), then dropout."""

    def __init__(
        self, pieces: int, width: int, *, positions: int, segments: int, dropout: float, norm_eps: float | None
    ):
        super().__init__()
        self.words = nn.Embedding(pieces, width)
        self.positions = nn.Embedding(positions, width)
        self.segments = nn.Embedding(segments, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps) if norm_eps is not None else None
        self.dropout = dropout

    def forward(self, ids_T: Tensor, rows: Rows, segments_T: Tensor | None = None) -> Tensor:
        """[T, D]. Without `segments_T` every token is in segment 0. InputError says which row and what limit."""
        if not torch.compiler.is_compiling():
            self.check(ids_T, rows, segments_T)
        x_TD = self.words(ids_T)
        # index 0 for all: an expanded row is one addition, where a lookup would also scatter in the backward pass
        x_TD = x_TD + (self.segments.weight[0] if segments_T is None else self.segments(segments_T))
        x_TD = x_TD + self.positions(rows.positions)
        if self.norm is not None:
            x_TD = self.norm(x_TD)
        return dropped(x_TD, self.dropout, self.training)

    def check(self, ids_T: Tensor, rows: Rows, segments_T: Tensor | None) -> None:
        """InputError unless every id, segment and length has its row in the tables."""
        limit = self.positions.num_embeddings
        if rows.longest > limit:
            row = next(row for row, length in enumerate(rows.lengths) if length > limit)
            raise InputError(
                f"row {row} has {rows.lengths[row]} tokens, the model takes at most {limit}; "
                f"cut it (max_length={limit}) or split it into windows"
            )
        _check_range(
            ids_T, rows, self.words.num_embeddings, "id", "were the texts encoded with this model's vocabulary?"
        )
        if segments_T is not None:
            _check_range(
                segments_T, rows, self.segments.num_embeddings, "segment", "text A is segment 0, text B segment 1"
            )


def _check_range(values_T: Tensor, rows: Rows, limit: int, name: str, advice: str) -> None:
    if values_T.dim() != 1 or len(values_T) != rows.total:
        raise InputError(
            f"{name}s of shape [{rows.total}] were expected for {rows.count} rows, found {list(values_T.shape)}"
        )
    if values_T.is_meta:
        return
    low, high = (int(value) for value in torch.stack(values_T.aminmax()).tolist())
    if low >= 0 and high < limit:
        return
    token = int(((values_T < 0) | (values_T >= limit)).nonzero()[0])
    row = rows.row_of(token)
    place = token - sum(rows.lengths[:row])
    raise InputError(
        f"row {row} has {name} {int(values_T[token])} at position {place}; "
        f"this model's table holds {name}s 0 to {limit - 1}: {advice}"
    )
