"""Heads: hidden states to scores. Masked LM, sentence pair (next sentence), and labels (Devlin et al., 2018, 3.1 and
4).

Dimension key: K target positions, D width, V pieces, R rows, C labels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertsmith.nn.dropout import dropped
from bertsmith.nn.rows import ROUND, rounded

# Rows of logits made at a time: 256 of 30,522 pieces are 31 MB, which malloc still takes from its pool; beyond 32 MB
# every chunk is fresh memory from the system, and first touching it costs as much as the arithmetic (45 ms for 75 MB).
CHUNK_BYTES = 31 * 1024 * 1024


class MlmHead(nn.Module):
    """Dense, GELU, norm, then the scores of all pieces; the decoder is the word table itself, plus a bias.

    `table_VD` is that table's parameter, shared and not copied: it appears here under a second name.
    """

    def __init__(self, table_VD: Tensor, *, norm_eps: float):
        super().__init__()
        assert isinstance(table_VD, nn.Parameter), "the word table itself is shared, not a tensor made from it"
        pieces, width = table_VD.shape
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.bias = nn.Parameter(torch.zeros(pieces, device=table_VD.device))
        self.table_VD = table_VD

    def forward(self, hidden_KD: Tensor) -> Tensor:
        """Scores [K, V]."""
        return functional.linear(self.features(hidden_KD), self.table_VD, self.bias)

    def features(self, hidden_KD: Tensor) -> Tensor:
        return self.norm(functional.gelu(self.transform(hidden_KD)))

    def loss(self, hidden_KD: Tensor, targets_K: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy (float32), and how many targets got the highest score."""
        table_VD, bias_V = self.table_VD, self.bias
        features_KD = self.features(rounded(hidden_KD))
        if hidden_KD.device.type != "cpu":
            logits_KV = functional.linear(features_KD, table_VD, bias_V).float()
            correct = (logits_KV.detach().argmax(-1) == targets_K).sum()
            return functional.cross_entropy(logits_KV, targets_K, reduction="sum"), correct
        half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        wanted = torch.is_grad_enabled() and features_KD.requires_grad | table_VD.requires_grad | bias_V.requires_grad
        return _LinearCrossEntropy.apply(features_KD.to(half), table_VD.to(half), bias_V, targets_K, wanted)


class NspHead(nn.Module):
    """Two scores for each pair; as in the 2018 code, class 0 means "B follows A"."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, 2)

    def forward(self, pooled_RD: Tensor) -> Tensor:
        return self.linear(pooled_RD)


class LabelHead(nn.Module):
    """Dropout and one score for each label."""

    def __init__(self, width: int, labels: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(width, labels)
        self.dropout = dropout

    def forward(self, pooled_RD: Tensor) -> Tensor:
        return self.linear(dropped(pooled_RD, self.dropout, self.training))


class _LinearCrossEntropy(torch.autograd.Function):
    """Scores and cross-entropy of a chunk at a time, with the gradients made on the way: no [K, V] tensor is ever kept.

    There may be more features than targets (see `rounded`); those behind count nothing.

    For K = 615, V = 30,522, D = 256 forward and backward take 455 ms here, 578 with linear + cross_entropy, 679 with
    torch.nn.functional.linear_cross_entropy (medians, two cores).
    """

    @staticmethod
    def forward(
        ctx: Any, x_KD: Tensor, table_VD: Tensor, bias_V: Tensor, targets_K: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        grad_x_KD = torch.empty_like(x_KD)
        grad_table_VD, grad_bias_V = torch.zeros_like(table_VD), torch.zeros_like(bias_V)
        chunk = max(1, CHUNK_BYTES // (4 * len(bias_V)))
        chunk -= chunk % ROUND if chunk > ROUND else 0
        counted = len(targets_K)
        targets_K = functional.pad(targets_K, (0, len(x_KD) - counted))
        with torch.autocast("cpu", enabled=False):
            for start in range(0, len(x_KD), chunk):
                x_kD, targets_k1 = x_KD[start : start + chunk], targets_K[start : start + chunk, None]
                scores_kV = (
                    torch.addmm(bias_V, x_kD, table_VD.t())
                    if x_kD.dtype == bias_V.dtype
                    else (x_kD @ table_VD.t()).float().add_(bias_V)
                )
                top_k1, target_k1 = scores_kV.amax(-1, keepdim=True), scores_kV.gather(1, targets_k1)
                correct += (target_k1 >= top_k1)[: max(0, counted - start)].sum()
                scores_kV.sub_(top_k1).exp_()
                sum_k1 = scores_kV.sum(-1, keepdim=True)
                total += (sum_k1.log() + top_k1 - target_k1)[: max(0, counted - start)].sum()
                if not wanted:
                    continue
                grad_kV = scores_kV.div_(sum_k1).scatter_add_(
                    1, targets_k1, scores_kV.new_full((), -1.0).expand_as(targets_k1)
                )
                grad_kV[max(0, counted - start) :] = 0.0
                grad_bias_V += grad_kV.sum(0)
                grad_kV = grad_kV.to(x_kD.dtype)
                torch.mm(grad_kV, table_VD, out=grad_x_KD[start : start + chunk])
                grad_table_VD.addmm_(grad_kV.t(), x_kD)
        if wanted:
            ctx.save_for_backward(grad_x_KD, grad_table_VD, grad_bias_V)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        grad_x_KD, grad_table_VD, grad_bias_V = ctx.saved_tensors
        return grad_x_KD * grad, grad_table_VD * grad, grad_bias_V * grad, None, None
