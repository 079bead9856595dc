from pathlib import Path

import pytest

from bertsmith.base.config import from_mapping, to_mapping, with_settings, write_toml
from bertsmith.errors import ConfigError
from bertsmith.train.settings import ANNOUNCED, FREE, Recipe, TrainSettings, check_recipe, differences, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_reads_and_survives_a_round_trip(path, tmp_path):
    recipe = read_recipe(path)
    (tmp_path / "again.toml").write_text(write_toml(to_mapping(recipe)))
    assert read_recipe(tmp_path / "again.toml") == recipe


def test_bert_base_is_the_papers():
    recipe = read_recipe(next(path for path in RECIPES if path.stem == "bert-base"))
    train = recipe.train
    assert (train.steps, train.batch, train.learning_rate, train.warmup) == (1_000_000, 256, 1e-4, 10_000)
    assert (train.betas, train.weight_decay, train.schedule) == ((0.9, 0.999), 0.01, "linear")
    assert (recipe.model.dropout, recipe.model.attention_dropout, recipe.model.pre_norm) == (0.1, 0.1, False)
    assert (recipe.data.mask_rate, recipe.data.short_rate, recipe.data.objective) == (0.15, 0.1, "mlm+nsp")


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'learning_rte'; did you mean 'learning_rate'"):
        from_mapping(Recipe, {"train": {"learning_rte": 1.0}}, where="r.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.steps=0", "train.steps 0"),
        ("train.batch=100000001", "no multiple of train.micro_batch"),
        ("train.warmup=99999999", "train.warmup"),
        ("train.learning_rate=0", "train.learning_rate"),
        ("train.betas=[0.9, 1.0]", "train.betas"),
        ("train.clip=-1", "train.clip"),
        ("train.minutes=0", "train.minutes"),
        ("model.dropout=1.5", "dropout 1.5"),
        ("data.mask_rate=0", "nothing would be predicted"),
        ("data.mask_rule=[0.5, 0.1, 0.1]", "add up to 1"),
        ("train.optimizer=adam", "did you mean"),
    ],
)
def test_values_no_run_could_have_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        check_recipe(with_settings(from_mapping(Recipe, {"train": {"micro_batch": 2}}, where="test"), [change]))


def test_differences_are_named():
    other = with_settings(Recipe(), ["train.steps=5", "model.depth=3"])
    assert differences(Recipe(), other) == [("model.depth", None, 3), ("train.steps", 1_000_000, 5)]


def test_the_settings_a_resumed_run_may_change_exist():
    names = set(TrainSettings.__dataclass_fields__)
    assert set(FREE) | set(ANNOUNCED) < names
    assert not set(FREE) & set(ANNOUNCED)
