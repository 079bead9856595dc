import pytest
import torch
from torch import nn
from torch.nn import functional

from bertsmith.nn import heads
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead


def make(pieces=37, width=8):
    torch.manual_seed(0)
    head = MlmHead(nn.Parameter(torch.randn(pieces, width)), norm_eps=1e-12)
    nn.init.normal_(head.bias)
    return head


@pytest.mark.parametrize("rows_at_a_time", [1, 4, 100])
def test_the_loss_is_the_cross_entropy_of_the_scores(rows_at_a_time, monkeypatch):
    monkeypatch.setattr(heads, "CHUNK_BYTES", 4 * 37 * rows_at_a_time)
    head, targets_K = make(), torch.tensor([3, 36, 0, 3, 9, 11])
    found = []
    for ours in (True, False):
        head.zero_grad()
        hidden_KD = torch.linspace(-2, 2, 48).sin().view(6, 8).requires_grad_()
        if ours:
            total, correct = head.loss(hidden_KD, targets_K)
        else:
            scores_KV = head(hidden_KD)
            total = functional.cross_entropy(scores_KV, targets_K, reduction="sum")
            correct = (scores_KV.argmax(-1) == targets_K).sum()
        (total * 0.7).backward()
        found.append((total.detach(), hidden_KD.grad, *(parameter.grad for parameter in head.parameters())))
        assert not correct.requires_grad
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_right_answers_are_counted():
    head = make()
    hidden_KD = torch.randn(20, 8)
    best_K = head(hidden_KD).argmax(-1)
    targets_K = torch.where(torch.arange(20) < 13, best_K, (best_K + 1) % 37)
    total, correct = head.loss(hidden_KD, targets_K)
    assert int(correct) == 13
    with torch.no_grad():
        again, _ = head.loss(hidden_KD, targets_K)
    torch.testing.assert_close(again, total.detach())


def test_huge_scores_stay_finite_and_nan_is_passed_on():
    head = make()
    with torch.no_grad():
        head.bias.mul_(1e4)
    hidden_KD = torch.randn(3, 8, requires_grad=True)
    total, _ = head.loss(hidden_KD, torch.tensor([1, 2, 3]))
    total.backward()
    assert total.isfinite()
    assert hidden_KD.grad.isfinite().all()
    assert head.loss(hidden_KD * float("nan"), torch.tensor([1, 2, 3]))[0].isnan()


def test_half_precision_loss_is_near_and_float32():
    head, hidden_KD, targets_K = make(), torch.randn(6, 8), torch.tensor([3, 36, 0, 3, 9, 11])
    exact, _ = head.loss(hidden_KD, targets_K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, _ = head.loss(hidden_KD, targets_K)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, exact, rtol=0.03, atol=0.1)
    total.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in head.parameters())


def test_the_decoder_is_the_table_itself():
    head = make()
    assert sum(parameter.numel() for parameter in head.parameters()) == 37 * 8 + 37 + 8 * 8 + 8 + 16
    with torch.no_grad():
        head.table_VD.zero_()
    assert torch.equal(head(torch.randn(2, 8)), head.bias.expand(2, 37))


def test_shapes_of_the_small_heads():
    assert NspHead(8)(torch.randn(3, 8)).shape == (3, 2)
    head = LabelHead(8, 5, 0.5)
    pooled_RD = torch.randn(3, 8)
    assert head(pooled_RD).shape == (3, 5)
    assert not torch.equal(head(pooled_RD), head(pooled_RD))
    head.eval()
    assert torch.equal(head(pooled_RD), head(pooled_RD))
