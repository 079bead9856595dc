import math

import pytest
import torch
from torch import nn

from bertsmith.errors import ConfigError, StateError, TrainingError
from bertsmith.train.optimizers import (
    NEWTON_SCHULZ,
    Muon,
    build_optimizer,
    check_every_parameter_once,
    hidden_matrices,
    orthogonalize,
)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)


class Model(nn.Module):
    """The shape of an encoder with a head tied to its table."""

    def __init__(self, width=8, depth=2):
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 20)
        self.head.weight = self.table.weight
        self.pooler = nn.Linear(width, width)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def fill_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def take_steps(model, optimizer, count, rate=1e-2):
    for seed in range(count):
        fill_gradients(model, seed)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "adamw2018", "muon"])
def test_every_parameter_is_in_one_group_and_decay_spares_biases_and_norms(model, name):
    optimizer = build_optimizer(model, name=name, learning_rate=1e-3)
    check_every_parameter_once(model, optimizer)
    decay = {key: group["weight_decay"] for group in optimizer.param_groups for key in group["names"]}
    assert decay.keys() == dict(model.named_parameters()).keys()
    for key, value in decay.items():
        assert value == (0.0 if key.endswith("bias") or "norm" in key else 0.01), key


def test_the_check_finds_a_parameter_left_out_and_one_taken_twice(model):
    optimizer = build_optimizer(model, learning_rate=1e-3)
    model.late = nn.Linear(2, 2)
    with pytest.raises(TrainingError, match=r"late\.weight is in 0 optimizer groups"):
        check_every_parameter_once(model, optimizer)
    del model.late
    optimizer.param_groups[0]["params"].append(model.table.weight)
    with pytest.raises(TrainingError, match=r"table\.weight is in 2"):
        check_every_parameter_once(model, optimizer)


def test_a_frozen_parameter_belongs_to_no_group(model):
    model.table.weight.requires_grad_(False)
    optimizer = build_optimizer(model, name="muon", learning_rate=1e-3)
    assert not any("table" in key for group in optimizer.param_groups for key in group["names"])
    check_every_parameter_once(model, optimizer)


def test_adamw2018_against_its_definition(model):
    reference = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    means = {name: torch.zeros_like(value) for name, value in reference.items()}
    squares = {name: torch.zeros_like(value) for name, value in reference.items()}
    optimizer = build_optimizer(model, name="adamw2018", learning_rate=1e-2)
    for seed in range(4):
        fill_gradients(model, seed)
        optimizer.step()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.double()
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            update = means[name] / (squares[name].sqrt() + 1e-6)
            if not (name.endswith("bias") or "norm" in name):
                update = update + 0.01 * reference[name]
            reference[name] = reference[name] - 1e-2 * update
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.double(), reference[name], atol=1e-6, rtol=1e-5)


def test_adamw_corrects_its_bias_and_2018_does_not():
    torch.manual_seed(0)
    corrected, original = Model(), Model()
    original.load_state_dict(corrected.state_dict())
    before = corrected.pooler.weight.detach().clone()
    take_steps(corrected, build_optimizer(corrected, name="adamw", learning_rate=1e-2, weight_decay=0.0), 1)
    take_steps(original, build_optimizer(original, name="adamw2018", learning_rate=1e-2, weight_decay=0.0), 1)
    # The first step of the corrected form is lr * sign(g); without correction (1 - 0.9) / sqrt(1 - 0.999) times that.
    torch.testing.assert_close((corrected.pooler.weight - before).abs(), torch.full((8, 8), 1e-2), atol=1e-6, rtol=1e-3)
    expected = torch.full((8, 8), 1e-2 * 0.1 / math.sqrt(0.001))
    torch.testing.assert_close((original.pooler.weight - before).abs(), expected, atol=1e-5, rtol=2e-2)


def test_muon_takes_the_matrices_between_hidden_states_only(model):
    names = {"qkv", "out", "up", "down"}
    layers = {f"layers.{at}.{name}.weight" for at in (0, 1) for name in names}
    assert hidden_matrices(model).keys() == layers | {"pooler.weight"}


def test_muon_needs_a_stack_of_layers():
    with pytest.raises(ConfigError, match="take adamw"):
        build_optimizer(nn.Linear(4, 4), name="muon", learning_rate=1e-3)


def newton_schulz_of_one(matrix):
    """Step by step, one matrix, as published."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_muon_against_a_direct_reference(model):
    matrices = hidden_matrices(model)
    reference = {name: parameter.detach().clone() for name, parameter in matrices.items()}
    buffers = {name: torch.zeros_like(value) for name, value in reference.items()}
    optimizer = build_optimizer(model, name="muon", learning_rate=2e-2)
    assert "float32" in optimizer.about or "bfloat16" in optimizer.about
    next(part for part in optimizer.parts if isinstance(part, Muon)).dtype = torch.float32
    for seed in range(3):
        fill_gradients(model, seed)
        gradients = {name: parameter.grad.clone() for name, parameter in matrices.items()}
        optimizer.step()
        for name, gradient in gradients.items():
            buffers[name] = 0.95 * buffers[name] + 0.05 * gradient
            update = 0.05 * gradient + 0.95 * buffers[name]
            parts = update.chunk(3) if "qkv" in name else [update]
            moved = torch.cat([0.2 * math.sqrt(max(part.shape)) * newton_schulz_of_one(part) for part in parts])
            reference[name] = (1 - 2e-2 * 0.01) * reference[name] - 2e-2 * moved
    for name, parameter in matrices.items():
        torch.testing.assert_close(parameter.detach(), reference[name], atol=2e-6, rtol=1e-4)


def test_muon_equals_torch_muon_within_bf16(model):
    mine = nn.Parameter(torch.randn(6, 10))
    theirs = nn.Parameter(mine.detach().clone())
    group = {"params": [mine], "thirds": [False], "lr": 1e-2, "weight_decay": 0.1}
    optimizer = Muon([group], momentum=0.95, dtype=torch.bfloat16)
    reference = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(seed))
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
    scale = 3 * 1e-2 * 0.2 * math.sqrt(10)  # the most that three updates can move a weight, about
    torch.testing.assert_close(mine, theirs, atol=0.02 * scale, rtol=0)
    optimizer.dtype = torch.float32
    mine.grad, theirs.grad = gradient.clone(), gradient.clone()
    optimizer.step()
    reference.step()
    torch.testing.assert_close(mine, theirs, atol=0.05 * scale, rtol=0)


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 4, 9), (2, 9, 4), (1, 1, 6)])
def test_orthogonalize_brings_singular_values_near_one(shape):
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape), torch.float32))
    assert values.shape == (shape[0], min(shape[1:]))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_orthogonalize_leaves_zero_at_zero():
    assert orthogonalize(torch.zeros(1, 3, 4), torch.float32).abs().max() == 0


def test_adam_learning_rate_is_a_scale_of_the_other_groups(model):
    optimizer = build_optimizer(model, name="muon", learning_rate=5e-3, adam_learning_rate=1e-3)
    scales = {key: group["lr_scale"] for group in optimizer.param_groups for key in group["names"]}
    assert scales["layers.0.up.weight"] == 1.0
    assert scales["table.weight"] == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["adamw", "adamw2018", "muon"])
def test_a_restored_optimizer_goes_on_bit_for_bit(name):
    torch.manual_seed(0)
    straight, broken = Model(), Model()
    broken.load_state_dict(straight.state_dict())
    take_steps(straight, build_optimizer(straight, name=name, learning_rate=1e-2), 5)
    first = build_optimizer(broken, name=name, learning_rate=1e-2)
    take_steps(broken, first, 2)
    state = {key: value.clone() for key, value in first.state_dict().items()}
    second = build_optimizer(broken, name=name, learning_rate=1e-2)
    second.load_state_dict(state)
    for seed in range(2, 5):
        fill_gradients(broken, seed)
        second.step()
    for key, value in straight.state_dict().items():
        assert torch.equal(value, broken.state_dict()[key]), key


def test_a_state_that_does_not_fit_is_refused(model):
    optimizer = build_optimizer(model, learning_rate=1e-3)
    take_steps(model, optimizer, 1)
    state = optimizer.state_dict()
    with pytest.raises(StateError, match="expected"):
        build_optimizer(model, name="muon", learning_rate=1e-3).load_state_dict(state)
    with pytest.raises(StateError, match=r"unknown parameters: gone"):
        optimizer.load_state_dict({**state, "gone/exp_avg": torch.zeros(1)})
    with pytest.raises(StateError, match=r"table\.weight/exp_avg"):
        optimizer.load_state_dict({**state, "table.weight/exp_avg": torch.zeros(2, 2)})


def test_an_unknown_name_is_refused(model):
    with pytest.raises(ConfigError, match="none of adamw, adamw2018, muon"):
        build_optimizer(model, name="adam", learning_rate=1e-3)
