import math

import pytest
import torch

from bertsmith.nn.dropout import LANES, add_dropped, dropped, keep_scale

CPU_KINDS = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_the_share_dropped_and_the_scale(p):
    torch.manual_seed(0)
    mask = keep_scale(torch.empty(1000, 501), p)
    exact = round(p * LANES) / LANES
    share = float((mask == 0).double().mean())
    assert abs(share - exact) < 4 * math.sqrt(exact * (1 - exact) / mask.numel())
    assert mask.unique().tolist() == [0.0, pytest.approx(1 / (1 - exact))]
    assert abs(float(mask.double().mean()) - 1) < 0.02


def test_neighbours_lanes_rows_and_draws_are_independent():
    torch.manual_seed(0)
    first, second = (keep_scale(torch.empty(400, 800), 0.3) > 0 for _ in range(2))

    def correlation(a, b):
        return float(torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1])

    bound = 5 / math.sqrt(first.numel())
    for shift in (1, 2, 3, 4, 8):  # four lanes share a word
        assert abs(correlation(first[:, shift:], first[:, :-shift])) < bound
    assert abs(correlation(first[1:], first[:-1])) < bound
    assert abs(correlation(first, second)) < bound


def test_torchs_seed_fixes_the_mask():
    torch.manual_seed(3)
    first = keep_scale(torch.empty(7, 3), 0.5)
    torch.manual_seed(3)
    assert torch.equal(keep_scale(torch.empty(7, 3), 0.5), first)


@pytest.mark.parametrize("kind", CPU_KINDS)
def test_values_and_gradients(kind):
    x, residual = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    torch.manual_seed(1)
    mask = keep_scale(x.to(kind), 0.25)
    torch.manual_seed(1)
    y = add_dropped(residual, x.to(kind), 0.25, True)
    torch.testing.assert_close(y, residual + x.to(kind) * mask, rtol=0, atol=1e-6)
    y.sum().backward()
    torch.testing.assert_close(x.grad, mask.float())
    torch.testing.assert_close(residual.grad, torch.ones(5, 8))


def test_nothing_happens_outside_training_or_at_zero():
    x = torch.randn(3, 4)
    state = torch.get_rng_state()
    assert dropped(x, 0.5, False) is x
    assert dropped(x, 0.0, True) is x
    assert torch.equal(add_dropped(x, x, 0.5, False), 2 * x)
    assert torch.equal(torch.get_rng_state(), state)


def test_masks_in_a_compiled_graph_are_those_drawn_eagerly():
    def two(x):
        return dropped(x, 0.5, True), dropped(x + 0, 0.5, True)

    torch.manual_seed(2)
    first, second = torch.compile(two, backend="aot_eager")(torch.ones(50, 50, requires_grad=True))
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    expected = two(torch.ones(50, 50))
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
    torch._dynamo.reset()
