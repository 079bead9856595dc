"""The padded face: a plain torch module for people's own training loops.

Inside bertsmith there is no padding; most people's loops have padded [B, L] tensors. `PaddedBert` takes them, with the
argument names everybody knows from transformers, and hands them on as one more kind of `Rows`.

Dimension key: B rows of the batch, L longest row, D width, C labels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertsmith.errors import InputError
from bertsmith.models.bert import Bert
from bertsmith.nn.heads import LabelHead
from bertsmith.nn.rows import Rows


@dataclass(frozen=True)
class PaddedOutput:
    """What `PaddedBert` returns."""

    hidden: Tensor  # [B, L, D], float; zero at padded places
    pooled: Tensor | None  # [B, D], after the pooler's tanh; None where the folder has no pooler
    logits: Tensor | None  # [B, C]; None without a label head
    loss: Tensor | None  # scalar, mean cross entropy in nats over the B rows; None without labels


class PaddedBert(nn.Module):
    """An encoder, and a label head if there is one, behind padded tensors.

    `net(input_ids, attention_mask=None, token_type_ids=None, labels=None)`: `input_ids` [B, L] integers;
    `attention_mask` [B, L], 1 or True at tokens and 0 at padding, which comes after the tokens; without it everything
    is a token. `token_type_ids` [B, L] says 0 for the first segment, 1 for the second; `labels` [B] integers in
    0..C-1. Dropout is on after `.train()`, as in every torch module.

    Raises InputError for shapes that do not fit, a row without tokens or with padding in front, ids outside the table,
    a text too long, labels outside 0..C-1, and labels where there is no head.
    """

    def __init__(self, encoder: Bert, head: LabelHead | None = None):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> PaddedOutput:
        if input_ids.dim() != 2 or not input_ids.numel():
            raise InputError(
                f"input_ids has shape {list(input_ids.shape)}; [rows, longest row], neither empty, was expected"
            )
        _check_shape("attention_mask", attention_mask, input_ids)
        _check_shape("token_type_ids", token_type_ids, input_ids)
        keep_BL = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        segments_T = None if token_type_ids is None else token_type_ids.flatten()
        rows = Rows.padded(keep_BL)
        if not bool(keep_BL[:, 0].all()):
            row = int((~keep_BL[:, 0]).nonzero()[0])
            raise InputError(f"row {row} begins with padding; the first token must be [CLS], padding comes at the end")
        hidden_TD = self.encoder(input_ids.flatten(), rows, segments_T)
        pooled_BD = None if self.encoder.pooler is None else self.encoder.pool(hidden_TD, rows)
        logits_BC = None if self.head is None or pooled_BD is None else self.head(pooled_BD)
        hidden_BLD = hidden_TD.view(*input_ids.shape, -1).masked_fill(~keep_BL.unsqueeze(-1), 0.0)
        loss = None if labels is None else _label_loss(logits_BC, labels)
        return PaddedOutput(hidden_BLD, pooled_BD, logits_BC, loss)


def _label_loss(logits_BC: Tensor | None, labels: Tensor) -> Tensor:
    if logits_BC is None:
        raise InputError('labels were given, but there is no label head: load the model with head="label", labels=...')
    if labels.shape != logits_BC.shape[:1] or labels.is_floating_point():
        raise InputError(
            f"labels has shape {list(labels.shape)}, type {labels.dtype}; {len(logits_BC)} whole numbers were expected"
        )
    count = logits_BC.shape[1]
    if bool(((labels < 0) | (labels >= count)).any()):
        raise InputError(
            f"a label is {int(labels.max() if labels.max() >= count else labels.min())}; 0 to {count - 1} was expected"
        )
    return functional.cross_entropy(logits_BC.float(), labels.long())


def _check_shape(name: str, tensor: Tensor | None, input_ids: Tensor) -> None:
    if tensor is not None and tensor.shape != input_ids.shape:
        raise InputError(
            f"{name} has shape {list(tensor.shape)}, input_ids {list(input_ids.shape)}; they must be equal"
        )
