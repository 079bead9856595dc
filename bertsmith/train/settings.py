"""A recipe: what a pre-training run is made of. recipes/*.toml are read into these classes; `--set` changes them.

[model] None means: as in the size's line of the catalog. [data] what an instance is. [train] how it is learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from bertsmith.base.config import from_mapping, read_toml, with_settings
from bertsmith.errors import ConfigError
from bertsmith.models.catalog import family_of
from bertsmith.train.schedules import schedule


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    family: str = "bert"
    size: str = "base"  # a name in the family's line of the catalog
    width: int | None = None  # H in the paper
    depth: int | None = None  # L
    heads: int | None = None  # A
    ffn_width: int | None = None  # 4H in the paper
    max_length: int | None = None  # positions
    dropout: float = 0.1
    attention_dropout: float = 0.1  # 0 is faster: no mask to draw for every pair of tokens
    pre_norm: bool = False  # the paper's form is post-norm


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    length: int = 128  # tokens of an instance, special ones included
    objective: Literal["mlm+nsp", "mlm"] = "mlm+nsp"
    mask_rate: float = 0.15
    mask_rule: tuple[float, float, float] = (0.8, 0.1, 0.1)  # [MASK], random piece, unchanged
    whole_word: bool = False
    coin: Literal["piece", "word"] = "piece"  # whole_word only: whether a word's pieces draw from mask_rule one by one
    short_rate: float = 0.1  # how often a shorter length is drawn
    random_next_rate: float = 0.5
    dupe_factor: int | None = None  # so many static copies, as in 2018; None: fresh pairs and masks each epoch


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    steps: int = 1_000_000
    minutes: float | None = None  # of training: it ends there, if not at `steps`; see pretrain.py
    batch: int = 256  # instances a step
    micro_batch: int | None = None  # instances a forward pass; None: the whole batch
    optimizer: Literal["adamw", "adamw2018", "muon"] = "adamw"
    learning_rate: float = 1e-4
    adam_learning_rate: float | None = None  # muon only: the rate of what Muon does not take; None: the same
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | None = None  # None: 1e-6 for adamw2018, else 1e-8
    weight_decay: float = 0.01
    warmup: int = 10_000  # steps
    schedule: Literal["linear", "constant", "wsd"] = "linear"
    decay_share: float = 0.2  # wsd only: the share of the steps that decays
    clip: float | None = 1.0  # norm of the gradient
    frequent_bias: bool = False  # begin with the MLM bias at each piece's log frequency, not at 0 as in the paper
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    seed: int = 0
    device: str = "auto"
    threads: int | None = None  # None: as torch chooses
    save_every: int | None = None  # steps
    save_minutes: float | None = 15.0
    keep: int = 2  # states
    log_every: int = 10  # steps
    evaluate_every: int | None = None  # steps; None: at the end only
    heldout: str | None = None  # a prepared corpus
    evaluate_rows: int = 512


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


# Settings a resumed run may change: without a word, and with a warning since the weights then differ from those of an
# undisturbed run. All others are refused.
FREE = ("save_every", "save_minutes", "keep", "log_every", "evaluate_every", "heldout", "evaluate_rows")
ANNOUNCED = (
    *("steps", "minutes", "micro_batch", "learning_rate", "adam_learning_rate", "warmup", "schedule", "decay_share"),
    *("weight_decay", "clip", "precision", "compile", "device", "threads"),
)


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file with changes such as "train.steps=100", checked."""
    recipe = with_settings(from_mapping(Recipe, read_toml(path), where=str(path)), changes)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """ConfigError for values that no run could have."""
    train = recipe.train
    family_of(recipe.model.family)
    for name in ("steps", "batch", "keep", "log_every", "evaluate_rows"):
        if getattr(train, name) < 1:
            raise ConfigError(f"train.{name} {getattr(train, name)}: at least 1 was expected")
    for name in (
        "minutes",
        "save_every",
        "save_minutes",
        "evaluate_every",
        "clip",
        "micro_batch",
        "threads",
        "eps",
        "adam_learning_rate",
    ):
        value = getattr(train, name)
        if value is not None and value <= 0:
            raise ConfigError(f"train.{name} {value}: a positive number was expected, or none")
    if train.weight_decay < 0:
        raise ConfigError(f"train.weight_decay {train.weight_decay}: 0 or more was expected")
    if train.learning_rate <= 0:
        raise ConfigError(f"train.learning_rate {train.learning_rate}: a positive number was expected")
    if not (0 <= train.betas[0] < 1 and 0 <= train.betas[1] < 1):
        raise ConfigError(f"train.betas {train.betas}: two numbers in [0, 1) were expected")
    if train.micro_batch is not None and train.batch % train.micro_batch:
        raise ConfigError(f"train.batch {train.batch} is no multiple of train.micro_batch {train.micro_batch}")
    for group, names in (
        (recipe.model, ("dropout", "attention_dropout")),
        (recipe.data, ("mask_rate", "short_rate", "random_next_rate")),
    ):
        for name in names:
            if not 0 <= getattr(group, name) <= 1:
                raise ConfigError(f"{name} {getattr(group, name)}: a share between 0 and 1 was expected")
    if recipe.data.mask_rate == 0:
        raise ConfigError("data.mask_rate 0: nothing would be predicted; the paper's is 0.15")
    if abs(sum(recipe.data.mask_rule) - 1) > 1e-6 or min(recipe.data.mask_rule) < 0:
        raise ConfigError(f"data.mask_rule {recipe.data.mask_rule}: three shares that add up to 1 were expected")
    schedule(train.schedule, train.learning_rate, train.warmup, train.steps, decay=train.decay_share)


def differences(old: Recipe, new: Recipe) -> list[tuple[str, object, object]]:
    """(name, old value, new value) of every setting that differs."""
    return [
        (f"{group}.{item.name}", before, after)
        for group in ("model", "data", "train")
        for item in fields(getattr(old, group))
        if (before := getattr(getattr(old, group), item.name)) != (after := getattr(getattr(new, group), item.name))
    ]
