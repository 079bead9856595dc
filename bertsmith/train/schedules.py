"""The learning rate of a step; steps are numbered from 1 to `steps`, and a fraction of a step is allowed.

BERT (Devlin et al., 2019, appendix A.2): "learning rate warmup over the first 10,000 steps, and linear decay of the
learning rate". As is usual since, the warm-up climbs from lr/warmup at step 1 to lr at step `warmup`, and the decay
falls from there to nearly zero at the last step (it would be zero one step later, so that no step is wasted). The 2018
code differs: its step 1 has rate 0, and its decay runs from step 0 underneath the warm-up, so that the rate drops by
the share warmup/steps where the warm-up ends.
"""

from collections.abc import Callable

from bertsmith.errors import ConfigError

Schedule = Callable[[float], float]


def linear(learning_rate: float, warmup: int, steps: int) -> Schedule:
    """Linear warm-up, then linear decay.

    >>> [round(linear(1.0, 2, 5)(step), 2) for step in range(1, 6)]
    [0.5, 1.0, 0.75, 0.5, 0.25]
    """
    _check(warmup, steps)
    return lambda step: learning_rate * min(_climb(step, warmup), max(0.0, (steps + 1 - step) / (steps + 1 - warmup)))


def constant(learning_rate: float, warmup: int = 0) -> Schedule:
    """Linear warm-up, then the same for ever."""
    return lambda step: learning_rate * _climb(step, warmup)


def wsd(learning_rate: float, warmup: int, steps: int, *, decay: float = 0.2) -> Schedule:
    """Warm-up, stable, decay: the last `decay` share of the steps falls linearly to nearly zero."""
    _check(warmup, steps)
    if not 0 < decay <= 1:
        raise ConfigError(f"train.decay_share {decay}: a share above 0, up to 1, was expected")
    falling = max(1.0, min(decay * steps, steps - warmup))
    return lambda step: learning_rate * min(_climb(step, warmup), max(0.0, min(1.0, (steps + 1 - step) / falling)))


def schedule(name: str, learning_rate: float, warmup: int, steps: int, *, decay: float = 0.2) -> Schedule:
    """The schedule a recipe names: linear, constant or wsd."""
    if name == "linear":
        return linear(learning_rate, warmup, steps)
    if name == "wsd":
        return wsd(learning_rate, warmup, steps, decay=decay)
    if name == "constant":
        return constant(learning_rate, warmup)
    raise ConfigError(f"train.schedule {name!r} is none of linear, constant, wsd")


def _climb(step: float, warmup: int) -> float:
    return 1.0 if step >= warmup else step / warmup


def _check(warmup: int, steps: int) -> None:
    if steps < 1:
        raise ConfigError(f"train.steps {steps}: at least 1 was expected")
    if not 0 <= warmup <= steps:
        raise ConfigError(f"train.warmup {warmup}: expected 0 to {steps} (train.steps); {steps // 10} would be a tenth")
