"""What a recipe amounts to, before anything runs: model, schedule, work, and the page `--dry-run` prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertsmith.base.config import to_mapping, write_toml
from bertsmith.checkpoints.folder import read_config
from bertsmith.corpus.shards import Corpus
from bertsmith.models.catalog import FAMILIES, config_for
from bertsmith.objectives.pretraining import BertPretraining
from bertsmith.train.schedules import schedule
from bertsmith.train.settings import ModelSettings, Recipe, check_recipe


def dry_run(recipe: Recipe, *, data: Path | None = None, init: Path | None = None) -> str:
    """What a run would be, without running it: settings, sizes, work, rates. Without `data`: 30,522 pieces.

    The shape is that of the model folder `init`, if one is given.
    """
    check_recipe(recipe)
    vocabulary = 30_522 if data is None else Corpus.open(data).manifest["vocabulary_size"]
    config = encoder_config(recipe.model, vocabulary) if init is None else read_config(init)
    nsp = recipe.data.objective == "mlm+nsp"
    with torch.device("meta"):
        model = BertPretraining(FAMILIES[recipe.model.family].encoder(config), nsp=nsp)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    train = recipe.train
    work = flops_per_step(recipe, config, nsp=nsp)
    lr_at = schedule_of(recipe)
    shown = sorted({1, max(1, train.warmup // 2), max(1, train.warmup), train.steps // 2 or 1, train.steps})
    lines = [
        write_toml(to_mapping(recipe)).rstrip(),
        "",
        f"vocabulary     {vocabulary:,} pieces" + (" (assumed; name a corpus to see its own)" if data is None else ""),
        f"parameters     {parameters:,}, heads included",
        f"instances      {train.batch:,} a step, {train.batch * train.steps:,} in all, of {recipe.data.length} tokens",
        f"work           {work / 1e12:.3g} TFLOP a step at full length, {work * train.steps / 1e15:,.3f} PFLOP in all",
        "learning rate  " + ", ".join(f"step {step:,}: {lr_at(step):.3g} ({_phase(recipe, step)})" for step in shown),
    ]
    if init is not None:
        lines.append(f"shape          that of {init}, not the recipe's [model]")
    if train.minutes is not None:
        lines.append(
            f"time limit     {train.minutes:g} minutes; the learning rate follows what is further, steps or minutes"
        )
    return "\n".join(lines)


def flops_per_step(recipe: Recipe, config: Any, *, nsp: bool) -> float:
    """Floating-point operations of a step, forward and backward (3 x forward), for rows of full length.

    Forward: 2 x (weights of the layers' matrices) a token; 4 x length x width a token and layer for attention's two
    products; 2 x width x (width + vocabulary) a target; 2 x width^2 a row for the pooler. Norms, GELU and look-ups are
    left out.
    """
    rows, length, width = recipe.train.batch, recipe.data.length, config.width
    matrices = config.depth * (4 * width * width + 2 * width * config.ffn_width)
    a_token = 2 * matrices + 4 * length * width * config.depth
    targets = rows * max(1, round(recipe.data.mask_rate * length))
    heads = targets * 2 * width * (width + config.vocab_size) + nsp * rows * 2 * width * width
    return 3.0 * (rows * length * a_token + heads)


def encoder_config(settings: ModelSettings, vocabulary: int) -> Any:
    """The encoder's configuration: the size's line of the catalog with what the recipe sets."""
    chosen = {name: value for name, value in to_mapping(settings).items() if value is not None}
    family, size = chosen.pop("family"), chosen.pop("size")
    return config_for(family, size, vocab_size=vocabulary, **chosen)


def schedule_of(recipe: Recipe) -> Callable[[float], float]:
    """The learning rate at a step, as the recipe wants it."""
    train = recipe.train
    return schedule(train.schedule, train.learning_rate, train.warmup, train.steps, decay=train.decay_share)


def _phase(recipe: Recipe, step: int) -> str:
    train, lr_at = recipe.train, schedule_of(recipe)
    if step < train.warmup:
        return "warm-up"
    return "peak" if lr_at(step) == train.learning_rate else "decay"
