"""The families bertsmith knows, and their sizes by name.

The 24 small BERTs are those of Turc et al., 2019 (arXiv:1908.08962): tiny, mini, small and medium are four of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertsmith.base.config import from_mapping, nearest
from bertsmith.errors import ConfigError
from bertsmith.models.bert import Bert, BertConfig


@dataclass(frozen=True)
class Family:
    config: type[BertConfig]
    encoder: type[Bert]
    sizes: Mapping[str, Mapping[str, int]]


def _bert(depth: int, width: int) -> dict[str, int]:
    # Heads of 64 and a feed-forward part of four widths, as in all sizes of the two papers.
    return {"depth": depth, "width": width, "heads": width // 64, "ffn_width": 4 * width}


FAMILIES: dict[str, Family] = {
    "bert": Family(
        BertConfig,
        Bert,
        {
            "tiny": _bert(2, 128),
            "mini": _bert(4, 256),
            "small": _bert(4, 512),
            "medium": _bert(8, 512),
            "base": _bert(12, 768),
            "large": _bert(24, 1024),
            **{
                f"L{depth}_H{width}": _bert(depth, width)
                for depth in (2, 4, 6, 8, 10, 12)
                for width in (128, 256, 512, 768)
            },
        },
    ),
}


def config_for(family: str, size: str, **changes: Any) -> BertConfig:
    """The configuration of that name, with fields changed.

    >>> config_for("bert", "mini", vocab_size=8_000).width
    256
    """
    found = family_of(family)
    sizes = _known(size, found.sizes, f"size of {family}")
    return from_mapping(found.config, {**sizes, **changes}, where=f"{family} {size}")


def family_of(name: str) -> Family:
    """The family of that name; ConfigError with the nearest known one."""
    found: Family = _known(name, FAMILIES, "family")
    return found


def parameter_count(config: BertConfig, pooler: bool = True) -> int:
    """Numbers that training adjusts, heads not counted.

    >>> parameter_count(config_for("bert", "base"))
    109482240
    """
    width, inner, norm = config.width, config.ffn_width, 2 * config.width
    tables = (config.vocab_size + config.max_length + config.segments) * width
    attention = 4 * (width * width + width)
    feed_forward = width * inner + inner + inner * width + width
    # One norm beside the layers in either form: after the embeddings, or after the last layer.
    return (
        tables + norm + config.depth * (attention + feed_forward + 2 * norm) + (width * width + width if pooler else 0)
    )


def _known(name: str, table: Mapping[str, Any], what: str) -> Any:
    if name in table:
        return table[name]
    near = nearest(name, table)
    raise ConfigError(
        f"unknown {what} {name!r}; " + (f"did you mean {near!r}?" if near else f"known are: {', '.join(table)}")
    )
