"""Ours equals transformers' BERT (and megatron-bert, its pre-norm shape), gradients too; planted mistakes do not."""

import dataclasses
from functools import partial

import pytest
import torch
from bert_oracle import differences, make_batch, make_ours, make_theirs, run_ours, run_theirs, small_config
from torch import nn
from torch.nn import functional

from bertsmith.nn.rows import Rows


@pytest.fixture(scope="module", params=[False, True], ids=["bert", "pre-norm"])
def pair(request):
    """Ours, a ragged batch with both segments, and what transformers makes of it."""
    ours = make_ours(small_config(pre_norm=request.param))
    batch = make_batch(ours.encoder.config)
    return ours, batch, run_theirs(ours, batch)


def test_equal_to_transformers(pair):
    ours, batch, theirs = pair
    found = run_ours(ours, batch)
    # transformers reports the last pre-norm layer before the final norm; "hidden" holds it behind.
    if ours.encoder.config.pre_norm:
        last = f"layer {ours.encoder.config.depth}"
        found, theirs = ({name: value for name, value in side.items() if name != last} for side in (found, theirs))
    assert differences(found, theirs) == []
    assert len(found) > 80


def test_the_gradients_compared_are_far_from_zero(pair):
    _, _, theirs = pair
    # A key's bias moves all scores of a query alike, so its gradient is zero by nature.
    small = [name for name, value in theirs.items() if value.abs().max() < 1e-3 and "key.bias" not in name]
    assert small == []


@pytest.mark.parametrize("layout", ["gathered", "ordered", "equal", "padded"])
def test_every_layout_is_equal(layout):
    ours = make_ours(small_config())
    lengths = {
        "gathered": (3, 40, 17, 40),
        "ordered": (48,) * 12 + (20, 9, 1),
        "equal": (24,) * 4,
        "padded": (5, 33, 8),
    }
    batch = make_batch(ours.encoder.config, lengths[layout])
    ids_BL, keep_BL, segments_BL = batch.padded()
    theirs = make_theirs(ours, "Model")(ids_BL, attention_mask=keep_BL, token_type_ids=segments_BL)
    expected_TD = theirs.last_hidden_state[keep_BL.bool()]
    if layout == "padded":
        rows = Rows.padded(keep_BL)
        hidden_TD = ours.encoder(ids_BL.flatten(), rows, segments_BL.flatten())
        torch.testing.assert_close(ours.encoder.pool(hidden_TD, rows), theirs.pooler_output, atol=1e-5, rtol=0)
        hidden_TD = hidden_TD[keep_BL.bool().flatten()]
    else:
        ids_T, rows, segments_T, _ = batch.rows()
        hidden_TD = ours.encoder(ids_T, rows, segments_T)
    torch.testing.assert_close(hidden_TD, expected_TD, atol=1e-5, rtol=0)


def test_masked_lm_class_is_equal(pair):
    ours, batch, _ = pair
    ids_BL, keep_BL, segments_BL = batch.padded()
    theirs = make_theirs(ours, "ForMaskedLM")(ids_BL, attention_mask=keep_BL, token_type_ids=segments_BL).logits
    ids_T, rows, segments_T, _ = batch.rows()
    scores_TV = ours.mlm(ours.encoder(ids_T, rows, segments_T))
    torch.testing.assert_close(scores_TV, theirs[keep_BL.bool()], atol=1e-5, rtol=0)


def test_tanh_gelu_is_noticed(pair):
    ours, batch, theirs = planted(pair)
    for layer in ours.encoder.layers:
        layer.feed_forward.activation = partial(functional.gelu, approximate="tanh")
    assert differs_in(ours, batch, theirs, "hidden", "gradient bert.embeddings.word_embeddings.weight")


def test_another_epsilon_is_noticed(pair):
    ours, batch, theirs = planted(pair)
    for part in ours.encoder.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5
    assert differs_in(ours, batch, theirs, "hidden")


def test_ignored_segments_are_noticed(pair):
    ours, batch, theirs = planted(pair)
    batch = dataclasses.replace(batch, segments=[[0] * len(row) for row in batch.segments])
    assert differs_in(ours, batch, theirs, "hidden", "gradient bert.embeddings.token_type_embeddings.weight")


def test_a_key_mask_left_out_is_noticed(pair, monkeypatch):
    ours, batch, theirs = planted(pair)
    with_mask = Rows._bucket
    monkeypatch.setattr(
        Rows, "_bucket", lambda rows, lengths: dataclasses.replace(with_mask(rows, lengths), keep_RL=None)
    )
    assert differs_in(ours, batch, theirs, "hidden")


def planted(pair):
    """A copy to make a mistake in."""
    ours, batch, theirs = pair
    return make_ours(ours.encoder.config), batch, theirs


def differs_in(ours, batch, theirs, *names):
    different = differences(run_ours(ours, batch), theirs)
    return set(names) <= set(different)
