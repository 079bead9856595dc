"""Dropout that costs a fraction of torch's on a CPU.

torch draws one float per element on one thread (14 ms per million elements on two Zen cores, more than the matrix
product before it). Here one 64-bit random word serves four elements: its 16-bit lanes are compared with round(p *
65,536), and what is kept is divided by the keep probability that threshold really has. The words come from numpy's
SFC64 (0.8 ms; torch's own 64-bit words 2.8 ms), which torch's default generator seeds anew for each mask: whoever seeds
torch, fixes every mask.

Dimension key: masks and tensors have any shape here.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LANES = 65_536  # values of a 16-bit lane; p is rounded to a multiple of 1 / LANES


def dropped(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with each element zeroed with probability `p` and the rest scaled up; `x` itself when not training."""
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, p, training)
    return x * keep_scale(x, p)


def add_dropped(residual: Tensor, x: Tensor, p: float, training: bool) -> Tensor:
    """`residual + dropped(x, p, training)` in one pass over memory."""
    if not training or p == 0.0:
        return residual + x
    if x.device.type != "cpu":
        return residual + functional.dropout(x, p, training)
    # A float mask: a multiplication by a bool one takes four times as long (2.0 ms against 0.5 per million elements),
    # and addcmul keeps nothing but the mask for its backward pass, so a function of our own would gain nothing.
    if x.dtype != residual.dtype:  # under autocast
        return residual + x * keep_scale(x, p)
    return torch.addcmul(residual, x, keep_scale(x, p))


def keep_scale(like: Tensor, p: float) -> Tensor:
    """A tensor shaped as `like`: 0 with probability `p`, elsewhere 1 / (1 - p), with p rounded to 1 / 65,536."""
    if torch.compiler.is_compiling():
        return _keep_scale_op(like.detach(), p)
    return _draw(like, p)


def _draw(like: Tensor, p: float) -> Tensor:
    threshold = min(round(p * LANES), LANES - 1)
    count = like.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())  # torch's default generator
    words = np.random.Generator(np.random.SFC64(seed)).integers(0, 2**64, size=-(-count // 4), dtype=np.uint64)
    lanes = torch.from_numpy(words.view(np.int16))[:count].view(like.shape)
    keep = (lanes >= threshold - LANES // 2).to(like.dtype)
    return keep.mul_(LANES / (LANES - threshold))


@torch.library.custom_op("bertsmith::keep_scale", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _keep_scale_op(like: Tensor, p: float) -> Tensor:
    """The same as one opaque operator, so that a compiled graph does not break here.

    The compiler takes two draws for the very same tensor for one; no layer drops a tensor twice.
    """
    return _draw(like, p)


@_keep_scale_op.register_fake
def _(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)
