"""Promises that every encoder in the catalog keeps, in either form."""

import pytest
import torch

from bertsmith.errors import ConfigError, InputError
from bertsmith.models.catalog import FAMILIES, config_for, parameter_count
from bertsmith.nn.device import Precision, autocast
from bertsmith.nn.layers import initialise
from bertsmith.nn.rows import Rows, lay_out

SMALL = {"vocab_size": 50, "width": 16, "depth": 2, "heads": 2, "ffn_width": 32, "max_length": 20}


@pytest.fixture(params=[(family, pre_norm) for family in sorted(FAMILIES) for pre_norm in (False, True)], ids=str)
def model(request):
    family, pre_norm = request.param
    config = config_for(family, "tiny", **SMALL, pre_norm=pre_norm)
    encoder = FAMILIES[family].encoder(config)
    initialise(encoder, 3, std=0.2)
    return encoder.eval()


def test_the_batch_neighbour_changes_nothing(model):
    alone = model(*lay_out([[5, 6, 7]]))
    together = model(*lay_out([[5, 6, 7], [8, 9, 3, 4, 4]]))
    torch.testing.assert_close(together[:3], alone, atol=1e-5, rtol=0)


def test_the_order_of_rows_changes_nothing(model):
    sequences = [[5, 6, 7], list(range(20)), [8], list(range(10, 20)), [9, 9]]
    forth = model(*lay_out(sequences)).split([len(s) for s in sequences])
    back = model(*lay_out(sequences[::-1])).split([len(s) for s in sequences[::-1]])
    for a, b in zip(forth, reversed(back), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_padding_changes_nothing(model):
    sequences = [[5, 6, 7], list(range(12)), [8]]
    ids_BL = torch.tensor([row + [0] * (12 - len(row)) for row in sequences])
    keep_BL = torch.tensor([[True] * len(row) + [False] * (12 - len(row)) for row in sequences])
    rows = Rows.padded(keep_BL)
    padded = model(ids_BL.flatten(), rows)
    ids_T, end_to_end = lay_out(sequences)
    hidden = model(ids_T, end_to_end)
    torch.testing.assert_close(padded[keep_BL.flatten()], hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.pool(padded, rows), model.pool(hidden, end_to_end), atol=1e-5, rtol=0)


def test_one_token_and_the_longest_text(model):
    ids_T, rows = lay_out([[4], list(range(20))])
    hidden = model(ids_T, rows)
    assert hidden.shape == (21, 16)
    assert model.pool(hidden, rows).shape == (2, 16)
    assert hidden.isfinite().all()


def test_evaluation_is_deterministic_and_training_is_not(model):
    ids_T, rows = lay_out([[5, 6, 7], list(range(20))])
    assert torch.equal(model(ids_T, rows), model(ids_T, rows))
    model.train()
    assert not torch.equal(model(ids_T, rows), model(ids_T, rows))


def test_a_seed_fixes_dropout(model):
    model.train()
    ids_T, rows = lay_out([[5, 6, 7], list(range(20))])
    torch.manual_seed(5)
    first = model(ids_T, rows)
    torch.manual_seed(5)
    assert torch.equal(model(ids_T, rows), first)


def test_every_parameter_gets_a_gradient(model):
    model.train()
    ids_T, rows = lay_out([[5, 6, 7], list(range(20))])
    hidden = model(ids_T, rows, torch.tensor([0, 0, 1] + [0] * 10 + [1] * 10))
    (hidden.square().sum() + model.pool(hidden, rows).sum()).backward()
    lacking = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert lacking == []


def test_half_precision_is_finite(model):
    model.train()
    ids_T, rows = lay_out([[5, 6, 7], [1, 2]])
    with autocast(torch.device("cpu"), Precision("bf16", "a test")):
        hidden = model(ids_T, rows)
        loss = model.pool(hidden, rows).float().square().mean()
    loss.backward()
    assert hidden.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_layers_end_in_the_hidden_states(model):
    ids_T, rows = lay_out([[5, 6, 7], [1, 2]])
    states = model.every_layer(ids_T, rows)
    assert len(states) == model.config.depth + 1
    assert torch.equal(states[-1], model(ids_T, rows))


def test_attention_weights_are_shares(model):
    ids_T, rows = lay_out([[5, 6, 7], [1, 2]])
    weights = model.attention_weights(ids_T, rows)
    assert [[tuple(row.shape) for row in layer] for layer in weights] == [[(2, 3, 3), (2, 2, 2)]] * 2
    for layer in weights:
        for row in layer:
            torch.testing.assert_close(row.sum(-1), torch.ones(row.shape[:2]))


def test_weights_come_from_the_seed(model):
    first, second, other = (type(model)(model.config) for _ in range(3))
    initialise(first, 7)
    initialise(second, 7)
    initialise(other, 8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embed.words.weight, other.embed.words.weight)
    words = first.embed.words.weight
    assert words.abs().max() <= 0.04
    assert 0.015 < float(words.detach().std()) < 0.02  # a normal of 0.02 cut at two of them has 0.0176
    assert all(not p.any() for n, p in first.named_parameters() if n.endswith("bias"))


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([[1, 2], [3] * 21], r"row 1 has 21 tokens, the model takes at most 20.*max_length=20"),
        ([[1, 2], [3, 50]], r"row 1 has id 50 at position 1.*ids 0 to 49"),
        ([[1, -1]], r"row 0 has id -1 at position 1"),
        ([], r"an empty batch"),
        ([[1], []], r"row 1 of the batch is empty"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(model, sequences, message):
    with pytest.raises(InputError, match=message):
        model(*lay_out(sequences))


def test_wrong_segments_are_refused(model):
    ids_T, rows = lay_out([[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"row 1 has segment 2 at position 0.*segments 0 to 1"):
        model(ids_T, rows, torch.tensor([0, 1, 2, 0]))
    with pytest.raises(InputError, match=r"segments of shape \[4\]"):
        model(ids_T, rows, torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"ids of shape \[4\]"):
        model(ids_T[:3], rows)


def test_an_encoder_without_pooler_says_so(model):
    bare = type(model)(model.config, pooler=False)
    ids_T, rows = lay_out([[1, 2]])
    with pytest.raises(InputError, match="no pooler"):
        bare.pool(bare(ids_T, rows), rows)
    assert bare.add_pooler(1)
    assert not bare.add_pooler(1)
    assert bare.pool(bare(ids_T, rows), rows).shape == (1, 16)


PAPER = {"base": 109_482_240, "large": 335_141_888, "tiny": 4_385_920, "mini": 11_170_560, "small": 28_763_648}


@pytest.mark.parametrize("size", sorted(FAMILIES["bert"].sizes))
def test_parameter_counts(size):
    config = config_for("bert", size)
    for pre_norm in (False, True):
        for pooler in (False, True):
            shape = config_for("bert", size, pre_norm=pre_norm)
            with torch.device("meta"):
                encoder = FAMILIES["bert"].encoder(shape, pooler=pooler)
            assert sum(parameter.numel() for parameter in encoder.parameters()) == parameter_count(shape, pooler=pooler)
    depth, width = config.depth, config.width
    by_hand = (30_522 + 512 + 2 + 2) * width + depth * (12 * width**2 + 13 * width) + width**2 + width
    assert parameter_count(config) == PAPER.get(size, by_hand) == by_hand


def test_the_catalog_has_the_24_small_ones():
    sizes = FAMILIES["bert"].sizes
    assert sum(name.startswith("L") for name in sizes) == 24
    for name, same in (("tiny", "L2_H128"), ("mini", "L4_H256"), ("small", "L4_H512"), ("medium", "L8_H512")):
        assert sizes[name] == sizes[same]
    assert sizes["base"] == sizes["L12_H768"]
    assert all(size["width"] == 64 * size["heads"] == size["ffn_width"] // 4 for size in sizes.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "256 cannot be split among 5"),
        ({"depht": 3}, "did you mean 'depth'"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"depth": 0}, "depth is 0"),
        ({"width": "wide"}, "whole number"),
    ],
)
def test_nonsense_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_for("bert", "mini", **changes)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mini'"):
        config_for("bert", "minni")
    with pytest.raises(ConfigError, match="did you mean 'bert'"):
        config_for("brt", "mini")
