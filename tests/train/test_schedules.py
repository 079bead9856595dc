import pytest

from bertsmith.errors import ConfigError
from bertsmith.train.schedules import constant, linear, schedule, wsd


def test_linear_climbs_then_falls_to_nearly_zero():
    lr_at = linear(1e-4, 10_000, 1_000_000)
    assert lr_at(1) == pytest.approx(1e-8)
    assert lr_at(10_000) == 1e-4
    assert max(lr_at(step) for step in (9_999, 10_001)) < 1e-4
    assert lr_at(505_000) == pytest.approx(0.5e-4, rel=1e-4)
    assert 0 < lr_at(1_000_000) < 1.1e-10
    assert lr_at(1_000_001) == 0 == lr_at(2_000_000)


@pytest.mark.parametrize("warmup", [0, 1, 7, 10])
def test_every_step_of_every_schedule_trains(warmup):
    for lr_at in (linear(1.0, warmup, 10), wsd(1.0, warmup, 10), constant(1.0, warmup)):
        rates = [lr_at(step) for step in range(1, 11)]
        assert min(rates) > 0
        assert max(rates) == (1.0 if warmup or lr_at(2) == 1.0 else pytest.approx(10 / 11))
        assert rates[:warmup] == sorted(rates[:warmup])


def test_wsd_is_flat_until_its_last_share():
    lr_at = wsd(1.0, 10, 100, decay=0.2)
    assert lr_at(5) == 0.5
    assert {lr_at(step) for step in range(10, 82)} == {1.0}
    assert lr_at(82) == pytest.approx(0.95)
    assert lr_at(100) == pytest.approx(0.05)


def test_fractions_of_a_step_are_in_between():
    lr_at = linear(1.0, 2, 5)
    assert lr_at(3) > lr_at(3.5) > lr_at(4)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("linear", 1.0, 11, 10), "train.warmup 11"),
        (("linear", 1.0, 0, 0), "train.steps 0"),
        (("cosine", 1.0, 0, 10), "none of linear, constant, wsd"),
    ],
)
def test_refusals(arguments, part):
    with pytest.raises(ConfigError, match=part):
        schedule(*arguments)


def test_a_decay_share_outside_is_refused():
    with pytest.raises(ConfigError, match="decay_share"):
        wsd(1.0, 0, 10, decay=0.0)
