from dataclasses import dataclass

import pytest
import torch
from torch import nn

from bertsmith.errors import NonFiniteLoss, TrainingError
from bertsmith.nn.device import Precision
from bertsmith.nn.rows import Rows
from bertsmith.objectives.terms import Term
from bertsmith.train.loop import training_steps
from bertsmith.train.optimizers import build_optimizer

CPU = torch.device("cpu")
FP32 = Precision("fp32", "for the test")


@dataclass
class Batch:
    rows: Rows
    x: torch.Tensor  # [rows, 4]
    many: torch.Tensor  # [rows, 3], the targets of the first term
    chosen: torch.Tensor  # [rows, 3] bool: which of them count
    few: torch.Tensor  # [rows]


class Model(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        x = self.dropout(batch.x)
        errors = (self.first(x) - batch.many)[batch.chosen]
        nearly = (errors.abs() < 1).sum()
        few = (self.second(x)[:, 0] - batch.few) ** 2
        return [
            Term("many", 1.0, (errors**2).sum(), len(errors), nearly),
            Term("few", 0.5, few.sum(), len(few), None),
        ]


def counts_of(batch):
    return {"many": int(batch.chosen.sum()), "few": batch.rows.count}


def make_batch(rows, seed=3, share=0.4):
    generator = torch.Generator().manual_seed(seed)
    x, many, few = (torch.randn(*shape, generator=generator) for shape in ((rows, 4), (rows, 3), (rows,)))
    return Batch(Rows.of([2] * rows), x, many, torch.rand(rows, 3, generator=generator) < share, few)


def cut(batch, sizes):
    columns = [column.split(sizes) for column in (batch.x, batch.many, batch.chosen, batch.few)]
    return [Batch(Rows.of([2] * len(parts[0])), *parts) for parts in zip(*columns, strict=True)]


def run(model, batches, *, last=1, micro_batches=1, lr=1e-2, first=1, name="adamw", counted=True, **more):
    optimizer = build_optimizer(model, name=name, learning_rate=lr)
    return training_steps(
        model,
        iter(batches),
        optimizer,
        lambda step: lr,
        first=first,
        last=last,
        micro_batches=micro_batches,
        precision=FP32,
        device=CPU,
        seed=0,
        counts_of=counts_of if counted else None,
        **more,
    )


def test_accumulation_equals_the_big_batch_with_unequal_counts():
    big, small = Model(), Model()
    batch = make_batch(12)
    parts = cut(batch, [1, 7, 4])
    parts[0].chosen[:] = False  # a micro-batch may even lack a term's targets
    batch.chosen[0] = False
    assert len({int(part.chosen.sum()) for part in parts}) == 3
    (whole,) = run(big, [batch], name="adamw2018")
    (added,) = run(small, parts, micro_batches=3, name="adamw2018")
    assert whole.counts == added.counts == {"many": int(batch.chosen.sum()), "few": 12}
    assert added.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
    assert added.losses == pytest.approx(whole.losses, rel=1e-6)
    assert added.accuracies == pytest.approx(whole.accuracies)
    assert added.tokens == whole.tokens == 24
    for mine, theirs in zip(small.parameters(), big.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def test_the_gradient_is_that_of_weighted_means():
    model, batch = Model(), make_batch(6)
    many, few = model(batch)
    loss = many.sum / many.count + 0.5 * few.sum / few.count
    expected = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    (step,) = run(model, [batch], counted=False)
    assert step.grad_norm == pytest.approx(norm.item(), rel=1e-6)
    assert step.losses["few"] == pytest.approx(few.sum.item() / 6, rel=1e-6)
    assert step.accuracies == {"many": pytest.approx(many.correct.item() / many.count)}


def test_clipping_scales_the_gradient_to_the_norm():
    model, batch = Model(), make_batch(6)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build_optimizer(model, name="adamw2018", learning_rate=1.0, betas=(0.0, 0.0), eps=1e6, weight_decay=0.0)
    steps = training_steps(
        model, iter([batch]), optimizer, lambda step: 1.0, first=1, last=1, clip=0.1, precision=FP32, device=CPU, seed=0
    )  # fmt: skip
    (step,) = steps
    assert step.grad_norm > 0.1
    moved = torch.cat([(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)])
    # With betas 0 and a huge eps an update is the gradient / eps.
    assert moved.norm().item() * 1e6 == pytest.approx(0.1, rel=0.1)


def test_dropout_needs_no_generator_state():
    batches = [make_batch(4, seed) for seed in range(6)]
    straight, resumed = Model(dropout=0.5), Model(dropout=0.5)
    list(run(straight, batches, last=3, micro_batches=2))
    list(run(resumed, batches[:2], last=1, micro_batches=2))
    torch.rand(1_000)  # whatever else draws in between
    optimizer_gone = Model(dropout=0.5)
    list(run(optimizer_gone, batches[:2], last=1, micro_batches=2))
    assert torch.equal(resumed.first.weight, optimizer_gone.first.weight)
    torch.manual_seed(99)
    (step,) = run(resumed, batches[2:4], first=2, last=2, micro_batches=2)
    (again,) = run(optimizer_gone, batches[2:4], first=2, last=2, micro_batches=2)
    assert step == again


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_stops_before_the_weights_are_touched(value):
    model, bad = Model(), make_batch(4)
    bad.x[0, 0] = value
    batches = [make_batch(4), bad, make_batch(4)]
    steps = run(model, batches, last=3)
    next(steps)
    after_one = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(NonFiniteLoss, match=r"step 2: .*learning rate.*warm-up.*precision"):
        next(steps)
    for old, new in zip(after_one, model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_parameter_without_gradient_is_named_at_the_first_step():
    model = Model()
    model.idle = nn.Linear(2, 2)
    with pytest.raises(TrainingError, match=r"idle\.weight, idle\.bias"):
        list(run(model, [make_batch(4)]))


def test_a_batch_without_targets_says_so():
    batch = cut(make_batch(4), [4])[0]
    batch = Batch(batch.rows, batch.x[:0], batch.many[:0], batch.chosen[:0], batch.few[:0])
    with pytest.raises(TrainingError, match="nothing to predict"):
        list(run(Model(), [batch], counted=False))


def test_counts_that_are_not_the_terms_own_are_refused():
    model, batch = Model(), make_batch(4)
    optimizer = build_optimizer(model, learning_rate=1e-2)
    steps = training_steps(
        model, iter([batch]), optimizer, lambda step: 1.0, first=1, last=1, precision=FP32, device=CPU, seed=0,
        counts_of=lambda batch: {"many": 999, "few": 4},
    )  # fmt: skip
    with pytest.raises(TrainingError, match="promise"):
        list(steps)


def test_several_micro_batches_need_their_counts():
    with pytest.raises(TrainingError, match="counts_of"):
        list(run(Model(), cut(make_batch(4), [2, 2]), micro_batches=2, counted=False))


def test_no_batch_is_lost_between_steps_and_no_half_step_taken():
    batches = iter([make_batch(2, seed) for seed in range(5)])
    model = Model()
    assert [step.number for step in run(model, batches, last=9, micro_batches=2)] == [1, 2]
    left = iter([make_batch(2, seed) for seed in range(5)])
    list(run(model, left, last=2, micro_batches=2))
    assert len(list(left)) == 1


def test_the_rate_is_the_schedules_times_the_groups_scale():
    model = Model()
    optimizer = build_optimizer(model, learning_rate=1e-2)
    optimizer.param_groups[1]["lr_scale"] = 0.5
    steps = training_steps(
        model, iter([make_batch(4)]), optimizer, lambda step: 0.25, first=7, last=7, precision=FP32, device=CPU, seed=0
    )  # fmt: skip
    (step,) = steps
    assert (step.number, step.lr) == (7, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]


def test_the_model_is_put_into_training_mode_each_step():
    model = Model(dropout=0.5)
    steps = run(model, [make_batch(4), make_batch(4)], last=2)
    next(steps)
    model.eval()
    next(steps)
    assert model.training
