"""Self-attention over rows (Vaswani et al., 2017, arXiv:1706.03762), without padding.

The projection and the output are token-wise; only `attend` in the middle looks at `Rows`. `choose_kernel` says which of
three it takes: "varlen", flash attention of variable length; "fused", scaled_dot_product_attention, one dense call for
each bucket of rows; "written out", products and softmax by themselves with a backward pass of our own (`_WrittenOut`).

Dimension key: T tokens of the batch, D width, R rows, L longest row, H heads, N = R * H, W width of a head, P slots.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from bertsmith.nn.dropout import dropped, keep_scale
from bertsmith.nn.rows import Bucket, Rows

SHORT = 256


class Kernel(NamedTuple):
    name: Literal["varlen", "fused", "written out"]
    reason: str  # for people


def choose_kernel(device: torch.device, *, half: bool, longest: int, dropout: float, learns: bool = True) -> Kernel:
    """How attention over rows of at most `longest` tokens is computed here. The measurements are in bench/attention.py.

    Rows of a padded layout have a mask, which "varlen" cannot take; they are "fused" in its place.
    """
    if dropout > 0.0:
        return Kernel("written out", "with dropout, the fused ones are slower")
    if device.type == "cuda" and half:
        return Kernel("varlen", "half precision on a GPU, no attention dropout")
    if device.type == "cpu" and half and learns and longest <= SHORT:
        return Kernel("written out", f"in half precision on a CPU torch's takes longer up to {SHORT} tokens")
    return Kernel("fused", "no attention dropout")


class SelfAttention(nn.Module):
    """Multi-head self-attention; query, key and value are one projection."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be split among {heads} heads")
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_TD: Tensor, rows: Rows) -> Tensor:
        return self.out(self.mix(self.qkv(x_TD), rows))

    def mix(self, qkv_T3D: Tensor, rows: Rows) -> Tensor:
        """The part in the middle, where tokens of a row see each other: [T, 3D] -> [T, D]."""
        return attend(qkv_T3D, rows, heads=self.heads, dropout=self.dropout if self.training else 0.0)

    def weights(self, qkv_T3D: Tensor, rows: Rows) -> list[Tensor]:
        """For each row the attention weights [H, L, L], query before key, without dropout."""
        weights = []
        for row, part_L3D in enumerate(qkv_T3D.split(rows.lengths)):
            q_HLW, k_HLW, _ = part_L3D.view(len(part_L3D), 3, self.heads, -1).permute(1, 2, 0, 3)
            scores_HLL = q_HLW @ k_HLW.transpose(1, 2) * q_HLW.shape[-1] ** -0.5
            if rows.keep_BL is not None:
                scores_HLL = scores_HLL.masked_fill(~rows.keep_BL[row], float("-inf"))
            weights.append(scores_HLL.softmax(-1))
        return weights


# Row layouts differ from batch to batch; kept out of compiled graphs they never cause a recompilation.
@torch.compiler.disable
def attend(qkv_T3D: Tensor, rows: Rows, *, heads: int, dropout: float) -> Tensor:
    """Each token's mixture of the values of its own row: [T, 3D] -> [T, D]; what lies behind the rows stays zero."""
    if len(qkv_T3D) > rows.total:
        mixed_TD = attend(qkv_T3D[: rows.total], rows, heads=heads, dropout=dropout)
        return functional.pad(mixed_TD, (0, 0, 0, len(qkv_T3D) - rows.total))
    if rows.keep_BL is None and _kernel_for(qkv_T3D, rows.longest, dropout).name == "varlen":
        return _attend_varlen(qkv_T3D, rows, heads)
    order = rows.order
    if order is not None:
        qkv_T3D = _Permute.apply(qkv_T3D, *order)
    buckets = rows.buckets
    parts = qkv_T3D.split([bucket.tokens for bucket in buckets]) if len(buckets) > 1 else [qkv_T3D]
    mixed = [_attend_bucket(part, bucket, heads, dropout) for part, bucket in zip(parts, buckets, strict=True)]
    mixed_TD = torch.cat(mixed) if len(mixed) > 1 else mixed[0]
    return mixed_TD if order is None else _Permute.apply(mixed_TD, order[1], order[0])


def _kernel_for(qkv_T3D: Tensor, longest: int, dropout: float) -> Kernel:
    half = qkv_T3D.dtype in (torch.float16, torch.bfloat16)
    return choose_kernel(qkv_T3D.device, half=half, longest=longest, dropout=dropout, learns=qkv_T3D.requires_grad)


def _attend_varlen(qkv_T3D: Tensor, rows: Rows, heads: int) -> Tensor:
    q_THW, k_THW, v_THW = qkv_T3D.view(rows.total, 3, heads, -1).unbind(1)
    bounds, longest = rows.bounds, rows.longest
    mixed_THW = varlen_attn(q_THW, k_THW, v_THW, bounds, bounds, longest, longest)
    return mixed_THW.reshape(rows.total, -1)  # type: ignore[union-attr]


def _attend_bucket(qkv_T3D: Tensor, bucket: Bucket, heads: int, dropout: float) -> Tensor:
    filled_up = bucket.slot_tokens_P is not None
    qkv_P3D = _FillUp.apply(qkv_T3D, bucket.slot_tokens_P, bucket.token_slots_T) if filled_up else qkv_T3D
    qkv_3RHLW = qkv_P3D.view(bucket.rows, bucket.longest, 3, heads, -1).permute(2, 0, 3, 1, 4)
    if _kernel_for(qkv_T3D, bucket.longest, dropout).name == "written out":
        mixed_PD = _attend_written_out(qkv_3RHLW, bucket.keep_RL, dropout)
    else:
        q_RHLW, k_RHLW, v_RHLW = qkv_3RHLW
        keep_R11L = None if bucket.keep_RL is None else bucket.keep_RL[:, None, None, :]
        mixed_RHLW = functional.scaled_dot_product_attention(q_RHLW, k_RHLW, v_RHLW, attn_mask=keep_R11L)
        mixed_PD = mixed_RHLW.transpose(1, 2).reshape(len(qkv_P3D), -1)
    return _TakeOut.apply(mixed_PD, bucket.token_slots_T) if filled_up else mixed_PD


def _attend_written_out(qkv_3RHLW: Tensor, keep_RL: Tensor | None, dropout: float) -> Tensor:
    _, rows, heads, length, head_width = qkv_3RHLW.shape
    q_NLW, k_NLW, v_NLW = qkv_3RHLW.reshape(3, rows * heads, length, head_width)
    bias_N1L = None
    if keep_RL is not None:
        bias_RL = torch.zeros(keep_RL.shape, dtype=q_NLW.dtype, device=keep_RL.device).masked_fill_(
            ~keep_RL, float("-inf")
        )
        bias_N1L = bias_RL.repeat_interleave(heads, 0)[:, None, :]
    mixed_NLW = _WrittenOut.apply(q_NLW, k_NLW, v_NLW, bias_N1L, dropout)
    return mixed_NLW.view(rows, heads, length, head_width).transpose(1, 2).reshape(rows * length, heads * head_width)


class _WrittenOut(torch.autograd.Function):
    """softmax(q k' / sqrt(W)) with dropout, times v; ordinary autograd would make five more passes over [N, L, L].

    With p the softmax, m the scaled mask and o the output, dp = m * (do v'), and the softmax's backward pass,
    p * (dp - sum(dp * p)), becomes (p * m) * (do v') - p * sum(do * o): two passes, which need p and p * m only.
    """

    @staticmethod
    def forward(
        ctx: Any, q_NLW: Tensor, k_NLW: Tensor, v_NLW: Tensor, bias_N1L: Tensor | None, dropout: float
    ) -> Tensor:
        scale = q_NLW.shape[-1] ** -0.5
        # Under autocast the projection already brought half precision; the softmax is float32 in any case.
        with torch.autocast(q_NLW.device.type, enabled=False):
            k_NWL = k_NLW.transpose(1, 2)
            if bias_N1L is None:
                start_NLL = q_NLW.new_empty(1, 1, 1).expand(len(q_NLW), q_NLW.shape[1], q_NLW.shape[1])
                scores_NLL = torch.baddbmm(start_NLL, q_NLW, k_NWL, beta=0, alpha=scale)
            else:
                scores_NLL = torch.baddbmm(bias_N1L.expand(-1, q_NLW.shape[1], -1), q_NLW, k_NWL, alpha=scale)
            p_NLL = torch.softmax(scores_NLL, -1, dtype=torch.float32).to(q_NLW.dtype)
            if dropout == 0.0:
                kept_NLL = p_NLL
            elif p_NLL.device.type == "cpu":
                kept_NLL = keep_scale(p_NLL, dropout).mul_(p_NLL)
            else:
                kept_NLL = dropped(p_NLL, dropout, True)
            mixed_NLW = torch.bmm(kept_NLL, v_NLW)
        ctx.save_for_backward(q_NLW, k_NLW, v_NLW, p_NLL, kept_NLL, mixed_NLW)
        return mixed_NLW

    @staticmethod
    def backward(ctx: Any, grad_NLW: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        q_NLW, k_NLW, v_NLW, p_NLL, kept_NLL, mixed_NLW = ctx.saved_tensors
        scale = q_NLW.shape[-1] ** -0.5
        grad_v_NLW = torch.bmm(kept_NLL.transpose(1, 2), grad_NLW)
        grad_NLL = torch.bmm(grad_NLW, v_NLW.transpose(1, 2)).mul_(kept_NLL)
        grad_NLL.addcmul_(p_NLL, (grad_NLW * mixed_NLW).sum(-1, keepdim=True), value=-1)
        grad_q_NLW = torch.bmm(grad_NLL, k_NLW).mul_(scale)
        grad_k_NLW = torch.bmm(grad_NLL.transpose(1, 2), q_NLW).mul_(scale)
        return grad_q_NLW, grad_k_NLW, grad_v_NLW, None, None


class _Permute(torch.autograd.Function):
    """Tokens in another order; the gradient takes the way back, instead of adding up at indices."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, forth_T: Tensor, back_T: Tensor) -> Tensor:
        ctx.back_T = back_T
        return x_TD.index_select(0, forth_T)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad_TD.index_select(0, ctx.back_T), None, None


class _FillUp(torch.autograd.Function):
    """Tokens to slots. What stands in a slot of no token is masked, so its gradient is exactly zero and not looked
    at."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, slot_tokens_P: Tensor, token_slots_T: Tensor) -> Tensor:
        ctx.token_slots_T = token_slots_T
        return x_TD.index_select(0, slot_tokens_P)

    @staticmethod
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad_PD.index_select(0, ctx.token_slots_T), None, None


class _TakeOut(torch.autograd.Function):
    """Slots back to tokens; the slots of no token get a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, token_slots_T: Tensor) -> Tensor:
        ctx.token_slots_T, ctx.slots = token_slots_T, len(x_PD)
        return x_PD.index_select(0, token_slots_T)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad_PD = grad_TD.new_zeros(ctx.slots, grad_TD.shape[1])
        return grad_PD.index_copy_(0, ctx.token_slots_T, grad_TD), None
