import math

import pytest
import torch

from bertsmith.nn import attention
from bertsmith.nn.attention import SelfAttention, attend, choose_kernel
from bertsmith.nn.rows import Rows

HEADS, WIDTH = 2, 8
LAYOUTS = {"equal": (6, 6, 6), "ordered": (40, 38, 9, 8, 1), "gathered": (3, 40, 1, 38, 9), "one": (1,)}


def slow_attention(qkv_T3D, rows, kept=None):
    """Row by row and head by head, as the formula says; `kept` are the scaled dropout masks [H, L, L] by row."""
    mixed = []
    for row, part in enumerate(qkv_T3D.split(rows.lengths)):
        q, k, v = part.view(len(part), 3, HEADS, -1).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).softmax(-1)
        mixed.append(((weights if kept is None else weights * kept[row]) @ v).transpose(0, 1).reshape(len(part), -1))
    return torch.cat(mixed)


def both(function, qkv, *arguments, **named):
    """Output and gradient."""
    qkv = qkv.clone().requires_grad_()
    mixed = function(qkv, *arguments, **named)
    (mixed * torch.linspace(-1, 1, mixed.numel()).view_as(mixed)).sum().backward()
    return mixed.detach(), qkv.grad


@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
def test_equal_to_the_formula(lengths):
    rows, qkv = Rows.of(lengths), torch.randn(sum(lengths), 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    for ours, plain in zip(
        both(attend, qkv, rows, heads=HEADS, dropout=0.0), both(slow_attention, qkv, rows), strict=True
    ):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("short", [0, 256], ids=["fused", "written out"])
@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
def test_half_precision_is_the_formula_rounded(lengths, short, monkeypatch):
    monkeypatch.setattr(attention, "SHORT", short)
    rows, qkv = Rows.of(lengths), torch.randn(sum(lengths), 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    qkv = qkv.bfloat16()
    ours = both(attend, qkv, rows, heads=HEADS, dropout=0.0)
    for found, plain in zip(ours, both(slow_attention, qkv.float(), rows), strict=True):
        torch.testing.assert_close(found.float(), plain, atol=0.02 * float(plain.abs().max()), rtol=0)


@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
def test_with_dropout_equal_to_the_formula_under_the_same_mask(lengths, monkeypatch):
    rows, qkv = Rows.of(lengths), torch.randn(sum(lengths), 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    masks = {}

    def fixed_mask(like, p):
        """One mask for each place, whatever the bucket; the formula below is given the same."""
        seed = torch.Generator().manual_seed(9)
        mask = (torch.rand(HEADS, 64, 64, generator=seed) >= p).to(like.dtype) / (1 - p)
        masks["whole"] = mask
        length = like.shape[-1]
        return mask[:, :length, :length].repeat(len(like) // HEADS, 1, 1).clone()

    monkeypatch.setattr(attention, "keep_scale", fixed_mask)
    ours = both(attend, qkv, rows, heads=HEADS, dropout=0.3)
    kept = [masks["whole"][:, :length, :length] for length in lengths]
    for found, plain in zip(ours, both(slow_attention, qkv, rows, kept), strict=True):
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)


def test_dropout_keeps_the_mean_of_what_is_mixed():
    rows = Rows.of([32] * 8)
    qkv = torch.randn(256, 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    qkv[:, 2 * WIDTH :] = 1.0  # all values 1: without dropout every mixture is 1
    torch.manual_seed(0)
    mixed = torch.stack([attend(qkv, rows, heads=HEADS, dropout=0.1) for _ in range(50)])
    assert abs(float(mixed.mean()) - 1) < 0.01
    assert float(mixed.std()) > 0.05


def test_a_padded_mask_hides_keys_with_dropout_too():
    keep_BL = torch.tensor([[True] * 5 + [False] * 3, [True] * 8])
    rows = Rows.padded(keep_BL)
    qkv = torch.randn(16, 3 * WIDTH)
    changed = qkv.clone()
    changed[5:8] = 100.0
    for dropout in (0.0, 0.2):
        found = []
        for each in (qkv, changed):
            torch.manual_seed(1)
            found.append(attend(each, rows, heads=HEADS, dropout=dropout)[keep_BL.flatten()])
        assert torch.equal(*found)


def test_gradients_do_not_differ_from_run_to_run():
    rows = Rows.of((3, 40, 1, 38, 9))
    qkv = torch.randn(rows.total, 3 * WIDTH)
    for dropout in (0.0, 0.2):
        found = []
        for _ in range(3):
            torch.manual_seed(1)
            found.append(both(attend, qkv, rows, heads=HEADS, dropout=dropout)[1])
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_varlen_is_for_half_precision_on_a_gpu_only():
    chosen = {
        (device, half, dropout): choose_kernel(torch.device(device), half=half, longest=128, dropout=dropout).name
        for device in ("cpu", "cuda")
        for half in (True, False)
        for dropout in (0.0, 0.1)
    }
    assert [traits for traits, name in chosen.items() if name == "varlen"] == [("cuda", True, 0.0)]


def test_short_rows_in_half_precision_are_written_out_on_a_cpu_while_learning():
    cpu = torch.device("cpu")
    assert choose_kernel(cpu, half=True, longest=256, dropout=0.0).name == "written out"
    assert choose_kernel(cpu, half=True, longest=257, dropout=0.0).name == "fused"
    assert choose_kernel(cpu, half=True, longest=128, dropout=0.0, learns=False).name == "fused"
    assert choose_kernel(cpu, half=False, longest=128, dropout=0.0).name == "fused"


def test_a_width_that_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="10 cannot be split among 3"):
        SelfAttention(10, 3)
