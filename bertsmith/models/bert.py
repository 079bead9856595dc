"""BERT encoder (Devlin et al., 2018, arXiv:1810.04805), and the same with the norms moved in front.

What pre-norm changes (`pre_norm=True`): each part reads a normed copy of the stream, no norm follows the embeddings,
and one follows the last layer. That is the shape of Hugging Face's megatron-bert, so a folder of such a model loads
there too.

Dimension key: T tokens of the batch, R rows, D width, H heads, L tokens of one row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertsmith.errors import ConfigError, InputError
from bertsmith.nn.attention import SelfAttention
from bertsmith.nn.embeddings import Embeddings
from bertsmith.nn.layers import FeedForward, PostNormLayer, PreNormLayer, initialise
from bertsmith.nn.rows import Rows, rounded

# The largest sizes that are taken for meant; beyond them only the numbers' room would set an end.
LARGEST = {"depth": 1_000, "segments": 1_000, "heads": 1_000} | dict.fromkeys(
    ("vocab_size", "width", "ffn_width", "max_length"), 10_000_000
)


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    vocab_size: int = 30_522
    width: int = 768  # H in the paper
    depth: int = 12  # L
    heads: int = 12  # A
    ffn_width: int = 3_072  # 4 H
    max_length: int = 512
    segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    pre_norm: bool = False

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            if not 1 <= getattr(self, name) <= largest:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 1 to {largest:,}")
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} cannot be split among {self.heads} heads; choose a multiple of {self.heads}"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.norm_eps <= 0.0:
            raise ConfigError(f"norm_eps is {self.norm_eps}; it must be above 0")


class Bert(nn.Module):
    """Tokens to hidden states. Weights are torch's own until `initialise(model, seed)` or a checkpoint sets them.

    >>> from bertsmith.nn.rows import lay_out
    >>> model = Bert(BertConfig(vocab_size=99, width=8, depth=1, heads=2, ffn_width=16)).eval()
    >>> ids_T, rows = lay_out([[2, 7, 9, 3], [2, 5, 3]])
    >>> hidden_TD = model(ids_T, rows)
    >>> list(hidden_TD.shape), list(model.pool(hidden_TD, rows).shape)
    ([7, 8], [2, 8])
    """

    def __init__(self, config: BertConfig, *, pooler: bool = True):
        super().__init__()
        self.config = config
        layer = PreNormLayer if config.pre_norm else PostNormLayer
        self.embed = Embeddings(
            config.vocab_size,
            config.width,
            positions=config.max_length,
            segments=config.segments,
            dropout=config.dropout,
            norm_eps=None if config.pre_norm else config.norm_eps,
        )
        self.layers = nn.ModuleList(
            layer(
                SelfAttention(config.width, config.heads, dropout=config.attention_dropout),
                FeedForward(config.width, config.ffn_width, functional.gelu),  # erf, not the tanh approximation
                width=config.width,
                dropout=config.dropout,
                norm_eps=config.norm_eps,
            )
            for _ in range(config.depth)
        )
        self.final_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.pre_norm else None
        self.pooler = nn.Linear(config.width, config.width) if pooler else None

    def forward(self, ids_T: Tensor, rows: Rows, segments_T: Tensor | None = None) -> Tensor:
        """Hidden states [T, D] of the tokens that `rows` lays out."""
        x_TD = rounded(self.embed(ids_T, rows, segments_T))
        for layer in self.layers:
            x_TD = layer(x_TD, rows)
        x_TD = x_TD if self.final_norm is None else self.final_norm(x_TD)
        return x_TD if len(x_TD) == rows.total else x_TD[: rows.total]

    def every_layer(self, ids_T: Tensor, rows: Rows, segments_T: Tensor | None = None) -> list[Tensor]:
        """depth + 1 tensors [T, D]: the embeddings, then what leaves each layer (the last one normed, if pre-norm)."""
        states = [self.embed(ids_T, rows, segments_T)]
        for layer in self.layers:
            states.append(layer(states[-1], rows))
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        return states

    def attention_weights(self, ids_T: Tensor, rows: Rows, segments_T: Tensor | None = None) -> list[list[Tensor]]:
        """For each layer and each row the weights [H, L, L] with which its tokens look at each other."""
        x_TD = self.embed(ids_T, rows, segments_T)
        weights = []
        for layer in self.layers:
            assert isinstance(layer, (PostNormLayer, PreNormLayer))
            weights.append(layer.attention.weights(layer.before(x_TD), rows))
            x_TD = layer(x_TD, rows)
        return weights

    def pool(self, hidden_TD: Tensor, rows: Rows) -> Tensor:
        """[R, D]: each row's first token through a dense layer and tanh."""
        if self.pooler is None:
            raise InputError(
                "this encoder has no pooler (a masked LM trained alone has none); call add_pooler(seed) for a fresh one"
            )
        return torch.tanh(self.pooler(hidden_TD.index_select(0, rows.starts)))

    def add_pooler(self, seed: int) -> bool:
        """Gives an encoder that lacks one a pooler with fresh weights; says whether it did."""
        if self.pooler is not None:
            return False
        table = self.embed.words.weight
        pooler = nn.Linear(self.config.width, self.config.width)
        initialise(pooler, seed)
        self.pooler = pooler.to(table.device, table.dtype)
        return True


def compile_encoder(encoder: Bert) -> Bert:
    """Compiles the token-wise parts of every layer, in place, for any number of tokens; attention stays as it is.

    All layers share one graph each for what comes before and after attention, and no layout of rows recompiles it.
    """
    for layer in encoder.layers:
        assert isinstance(layer, (PostNormLayer, PreNormLayer))
        layer.before = torch.compile(layer.before, dynamic=True)  # type: ignore[method-assign]
        layer.after = torch.compile(layer.after, dynamic=True)  # type: ignore[method-assign]
    return encoder
