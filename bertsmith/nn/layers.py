"""Transformer layers: the one BERT has (norm after each sum) and the one that trains more easily (norm before each
part).

Each layer is two token-wise parts, `before` and `after`, around the one step where tokens meet, `attention.mix`: what
is token-wise can be compiled once for any number of tokens.

Dimension key: T tokens of the batch, D width, F inner width of the feed-forward part.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertsmith.nn.attention import SelfAttention
from bertsmith.nn.dropout import add_dropped
from bertsmith.nn.rows import Rows


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.activation = activation

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x_TD)))


class PostNormLayer(nn.Module):
    """x = norm(x + part(x)), for attention and feed-forward in turn (Devlin et al., 2018)."""

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, *, width: int, dropout: float, norm_eps: float
    ):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.feed_forward = feed_forward
        self.output_norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = dropout

    def forward(self, x_TD: Tensor, rows: Rows) -> Tensor:
        return self.after(x_TD, self.attention.mix(self.before(x_TD), rows))

    def before(self, x_TD: Tensor) -> Tensor:
        """Queries, keys and values [T, 3D]."""
        return self.attention.qkv(x_TD)

    def after(self, x_TD: Tensor, mixed_TD: Tensor) -> Tensor:
        x_TD = self.attention_norm(add_dropped(x_TD, self.attention.out(mixed_TD), self.dropout, self.training))
        return self.output_norm(add_dropped(x_TD, self.feed_forward(x_TD), self.dropout, self.training))


class PreNormLayer(nn.Module):
    """x = x + part(norm(x)), for attention and feed-forward in turn; a norm must follow the last layer."""

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, *, width: int, dropout: float, norm_eps: float
    ):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.attention = attention
        self.output_norm = nn.LayerNorm(width, eps=norm_eps)
        self.feed_forward = feed_forward
        self.dropout = dropout

    def forward(self, x_TD: Tensor, rows: Rows) -> Tensor:
        return self.after(x_TD, self.attention.mix(self.before(x_TD), rows))

    def before(self, x_TD: Tensor) -> Tensor:
        """Queries, keys and values [T, 3D]."""
        return self.attention.qkv(self.attention_norm(x_TD))

    def after(self, x_TD: Tensor, mixed_TD: Tensor) -> Tensor:
        x_TD = add_dropped(x_TD, self.attention.out(mixed_TD), self.dropout, self.training)
        return add_dropped(x_TD, self.feed_forward(self.output_norm(x_TD)), self.dropout, self.training)


def initialise(module: nn.Module, seed: int, *, std: float = 0.02) -> None:
    """Fresh weights as in the 2018 code: normal with `std`, cut at two of them; biases 0, norms 1. Same seed, same
    weights."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            # Drawn on the CPU, so that a seed means the same weights on every device.
            weight = torch.empty(part.weight.shape)
            nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            with torch.no_grad():
                part.weight.copy_(weight)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
    for name, parameter in module.named_parameters():
        if name.rpartition(".")[2] == "bias":
            nn.init.zeros_(parameter)
