"""The training loop: a generator that takes optimizer steps; what happens between them is the caller's.

    for step in training_steps(model, batches, optimizer, lr_at, first=1, last=1_000, ...):
        ...  # log, evaluate, save, stop

A model maps a batch to a list of terms (name, weight, sum, count). The loss of a step is the weighted sum of each
term's sum over its own count, counts taken over the whole step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.base.seeds import number
from bertsmith.errors import NonFiniteLoss, TrainingError
from bertsmith.nn.device import Precision, autocast
from bertsmith.objectives.terms import Term
from bertsmith.train.optimizers import Optimizer, check_every_parameter_once
from bertsmith.train.process import give_back_memory

TRIM_EVERY = 25  # steps; it takes some tens of milliseconds
HINT = "lower the learning rate, lengthen the warm-up, or set the precision to fp32"


@dataclass(frozen=True)
class Step:
    """What one optimizer step did; losses are unweighted means over its targets, `lr` is before each lr_scale."""

    number: int
    losses: dict[str, float]
    accuracies: dict[str, float]
    counts: dict[str, int]
    grad_norm: float
    lr: float
    tokens: int


def training_steps(
    model: nn.Module,
    batches: Iterator[Any],
    optimizer: Optimizer,
    lr_at: Callable[[int], float],
    *,
    first: int,
    last: int,
    micro_batches: int = 1,
    clip: float | None = 1.0,
    precision: Precision,
    device: torch.device,
    seed: int,
    counts_of: Callable[[Any], Mapping[str, int]] | None = None,
) -> Iterator[Step]:
    """Takes steps `first`..`last`, each over the next `micro_batches` of `batches`, and yields a Step after each.

    A batch has `.rows`. `counts_of(batch)` says how many targets each term has in a batch, before the model sees it;
    it is needed where a step has several micro-batches. Ends early when `batches` does, without a half step.
    Raises NonFiniteLoss before the weights are touched; they are then those of the step before.
    """
    if micro_batches > 1 and counts_of is None:
        raise TrainingError(
            f"{micro_batches} micro-batches a step: counts_of is needed, to know their targets beforehand"
        )
    check_every_parameter_once(model, optimizer)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for step in range(first, last + 1):
        group = _take(batches, micro_batches)
        if group is None:
            return
        model.train()
        # Over several processes, these counts and the tallies below are summed; nothing else in this loop would change.
        counts = None if counts_of is None else _total(counts_of(batch) for batch in group)
        tallies: dict[str, Tally] = {}
        for at, batch in enumerate(group):
            # Seeded here, step 700's dropout is the same whether or not this process took the steps before it.
            torch.manual_seed(number(seed, "dropout", step, at))
            with autocast(device, precision):
                terms = model(batch)
            if counts is None:
                counts = {term.name: term.count for term in terms}
            # Every term is divided by its own count over the whole step. A mean per micro-batch would give a
            # masked token more weight the fewer masked tokens stand beside it.
            parts = [term.weight * term.sum / counts[term.name] for term in terms if term.count]
            if not parts and not any(counts.values()):
                raise TrainingError(f"step {step}: nothing to predict in {len(group)} batches; were they masked?")
            if parts:
                torch.stack(parts).sum().backward()
            _tally(tallies, terms)
        assert counts is not None, "a step has at least one micro-batch"
        _check_counts(step, counts, tallies)
        losses = {name: tally.sum.item() / counts[name] for name, tally in tallies.items() if counts[name]}
        if step == first:
            _check_every_gradient(model)
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        grad_norm = norm.item()
        rate = lr_at(step)
        _check_finite(step, losses, grad_norm, rate)
        if clip is not None and grad_norm > clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = rate * parameter_group["lr_scale"]
        optimizer.step()
        optimizer.zero_grad()
        if step % TRIM_EVERY == 0 and device.type == "cpu":
            give_back_memory()
        tokens = sum(batch.rows.total for batch in group)
        yield Step(step, losses, _accuracies(tallies, counts), dict(counts), grad_norm, rate, tokens)


@dataclass
class Tally:
    """A term's sums over the micro-batches of a step; tensors, so that a GPU is not waited for in between."""

    sum: Tensor
    count: int
    correct: Tensor | None


def _take(batches: Iterator[Any], many: int) -> list[Any] | None:
    group = [batch for _, batch in zip(range(many), batches, strict=False)]  # the other order would take one too many
    return group if len(group) == many else None


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for mapping in counts:
        for name, count in mapping.items():
            total[name] = total.get(name, 0) + count
    return total


def _tally(tallies: dict[str, Tally], terms: Sequence[Term]) -> None:
    for term in terms:
        correct = None if term.correct is None else term.correct.detach().double()
        loss = term.sum.detach().double()
        old = tallies.get(term.name)
        if old is None:
            tallies[term.name] = Tally(loss, term.count, correct)
        else:
            both = None if old.correct is None or correct is None else old.correct + correct
            tallies[term.name] = Tally(old.sum + loss, old.count + term.count, both)


def _accuracies(tallies: Mapping[str, Tally], counts: Mapping[str, int]) -> dict[str, float]:
    correct = {name: tally.correct for name, tally in tallies.items() if counts[name]}
    return {name: right.item() / counts[name] for name, right in correct.items() if right is not None}


def _check_counts(step: int, counts: Mapping[str, int], tallies: Mapping[str, Tally]) -> None:
    found = {name: tally.count for name, tally in tallies.items() if tally.count}
    promised = {name: count for name, count in counts.items() if count}
    if found != promised:
        raise TrainingError(f"step {step}: the batches promise {promised} targets, the model's terms have {found}")


def _check_every_gradient(model: nn.Module) -> None:
    without = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    if without:
        raise TrainingError(
            f"no gradient reached {len(without)} parameters at the first step: {', '.join(without[:8])}"
            + (", ..." if len(without) > 8 else "")
            + "; nothing would train them. Leave them out of the model, or set requires_grad to False"
        )


def _check_finite(step: int, losses: Mapping[str, float], grad_norm: float, rate: float) -> None:
    shown = {**losses, "gradient norm": grad_norm}
    broken = [f"{name} is {value}" for name, value in shown.items() if not abs(value) < float("inf")]
    if broken:
        raise NonFiniteLoss(f"step {step}: {', '.join(broken)}, at learning rate {rate:.3g}; {HINT}")
