"""Several seeds of one fine-tuning as one result: mean, spread, and which of them collapsed to one label."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.tasks.metrics.labels import METRICS
from bertsmith.tasks.readers.splits import LabelData
from bertsmith.tasks.readers.table import Example


def seeds_summary(seeds: Sequence[Mapping[str, Any]], data: LabelData) -> dict[str, Any]:
    """What scores.json says; `seeds` are the scores of each, whose "dev" and "test" are mappings of `LabelScores`."""
    majority = max(data.labels, key=lambda label: sum(example.label == label for example in data.train))
    parts = {name: examples for name, examples in (("dev", data.dev), ("test", data.test)) if examples}
    values = {name: {metric: [scores[name][metric] for scores in seeds] for metric in METRICS} for name in parts}
    return {
        "rows": {"train": len(data.train), "dev": len(data.dev), "test": len(data.test)},
        "labels": list(data.labels),
        "mean": {name: {metric: mean(found) for metric, found in by.items()} for name, by in values.items()},
        "spread": {name: {metric: spread(found) for metric, found in by.items()} for name, by in values.items()},
        "majority": {"label": majority, **{name: _share(majority, examples) for name, examples in parts.items()}},
        "collapsed": [scores["seed"] for scores in seeds if scores["collapsed"]],
        "seeds": list(seeds),
    }


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds (n - 1); None for a single one, which has no spread."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def show_finetuned(scores: Mapping[str, Any]) -> str:
    """The table of a fine-tuning (out/scores.json): one line a seed, then mean and spread."""
    parts = [name for name in ("dev", "test") if scores["rows"][name]]
    heads = [f"{part} {name}" for part in parts for name in ("accuracy", "macro F1", "Matthews")]
    lines = ["seed      rate  epoch  " + "".join(head.rjust(15) for head in heads)]
    for seed in scores["seeds"]:
        cells = "".join(f"{seed[part][metric]:15.4f}" for part in parts for metric in METRICS)
        flag = "   one label for everything" if seed["collapsed"] else ""
        lines.append(f"{seed['seed']:<6} {seed['learning_rate']:>7g}  {seed['epoch']:>5}  {cells}{flag}")
    for row in ("mean", "spread"):
        values = [scores[row][part][metric] for part in parts for metric in METRICS]
        if values and None not in values:
            lines.append(row.ljust(23) + "".join(f"{value:15.4f}" for value in values))
    if parts:
        majority = scores["majority"]
        shares = ", ".join(f"{part} {majority[part]:.4f}" for part in parts)
        lines.append(f"always saying {majority['label']!r}, the most frequent label of train: accuracy {shares}")
    if "search" in scores:
        rates = ", ".join(f"{rate}: {found:.4f}" for rate, found in scores["search"].items())
        lines.append(f"mean dev {scores['metric']} by learning rate: {rates}")
    if scores["collapsed"]:
        lines.append(
            f"collapsed: {len(scores['collapsed'])} of {len(scores['seeds'])} seeds say one label for everything "
            f"({', '.join(map(str, scores['collapsed']))}); do not trust the mean before another learning rate, "
            "more epochs or other seeds have been tried"
        )
    return "\n".join(lines)


def _share(label: str, examples: Sequence[Example]) -> float:
    return sum(example.label == label for example in examples) / len(examples)
