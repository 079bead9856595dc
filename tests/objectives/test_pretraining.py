import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional

from bertsmith.errors import InputError
from bertsmith.models import bert
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn import heads
from bertsmith.nn.layers import initialise
from bertsmith.objectives.batch import collate
from bertsmith.objectives.pretraining import BertPretraining, fresh_pretraining

CONFIG = BertConfig(vocab_size=50, width=16, depth=2, heads=2, ffn_width=32, max_length=20)


@dataclass(frozen=True)
class FakeInstance:
    """What the corpus makes, without a corpus."""

    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    is_next: bool | None


def instance(length, positions, *, is_next=True, first=10):
    ids = np.arange(first, first + length, dtype=np.int64)
    segments = (np.arange(length) >= length // 2).astype(np.int64)
    positions = np.array(positions, dtype=np.int64)
    return FakeInstance(ids, segments, positions, ids[positions], is_next)


def three():
    return [instance(4, [1]), instance(9, [2, 8], is_next=False), instance(9, [0], first=30)]


def make(nsp=True):
    model = fresh_pretraining(Bert(CONFIG), nsp=nsp, seed=1)
    initialise(model, 1, std=0.2)
    return model


def test_collate_puts_the_longest_first_and_keeps_targets_with_their_rows():
    batch = collate(three())
    assert batch.rows.lengths == (9, 9, 4)
    assert batch.rows.order is None
    assert batch.target_positions_K.tolist() == [2, 8, 9, 19]
    assert batch.target_ids_K.tolist() == [12, 18, 30, 11]
    assert torch.equal(batch.ids_T[batch.target_positions_K], batch.target_ids_K)
    assert batch.is_next_R.tolist() == [False, True, True]
    assert batch.segments_T.tolist() == [0] * 4 + [1] * 5 + [0] * 4 + [1] * 5 + [0, 0, 1, 1]


def test_collate_refuses_what_is_no_batch():
    with pytest.raises(InputError, match="an empty batch"):
        collate([])
    with pytest.raises(InputError, match="with and without a sentence pair"):
        collate([instance(3, [1]), instance(3, [1], is_next=None)])
    assert collate([instance(3, [1], is_next=None)]).is_next_R is None


def test_terms_are_the_cross_entropies_of_the_scores():
    model, batch = make().eval(), collate(three())
    mlm, nsp = model(batch)
    hidden_TD = model.encoder(batch.ids_T, batch.rows, batch.segments_T)
    scores_KV = model.mlm(hidden_TD[batch.target_positions_K])
    assert (mlm.name, mlm.weight, mlm.count) == ("mlm", 1.0, 4)
    torch.testing.assert_close(mlm.sum, functional.cross_entropy(scores_KV, batch.target_ids_K, reduction="sum"))
    assert int(mlm.correct) == int((scores_KV.argmax(-1) == batch.target_ids_K).sum())
    logits_R2 = model.nsp(model.encoder.pool(hidden_TD, batch.rows))
    labels_R = torch.tensor([1, 0, 0])  # class 0: B follows A
    assert (nsp.name, nsp.weight, nsp.count) == ("nsp", 1.0, 3)
    torch.testing.assert_close(nsp.sum, functional.cross_entropy(logits_R2, labels_R, reduction="sum"))
    assert int(nsp.correct) == int((logits_R2.argmax(-1) == labels_R).sum())


def outcome(model, batch):
    """Sums, counts and gradients."""
    model.zero_grad()
    terms = model(batch)
    sum(term.sum / term.count for term in terms).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return [(term.sum.detach(), term.count, int(term.correct)) for term in terms], gradients


@pytest.mark.parametrize("chunk_bytes", [31 << 20, 4 * 50 * 3])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_rows_of_zeros_behind_the_last_change_nothing(monkeypatch, pre_norm, chunk_bytes):
    monkeypatch.setattr(heads, "CHUNK_BYTES", chunk_bytes)
    model = fresh_pretraining(Bert(dataclasses.replace(CONFIG, pre_norm=pre_norm)), nsp=True, seed=1).eval()
    initialise(model, 1, std=0.2)
    batch = collate(three())
    terms, gradients = outcome(model, batch)
    for module in (bert, heads):
        monkeypatch.setattr(module, "rounded", lambda x: functional.pad(x, (0, 0, 0, -len(x) % 16 + 16)))
    again, gradients_again = outcome(model, batch)
    for (a, *counts), (b, *counts_again) in zip(terms, again, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
        assert counts == counts_again
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients_again[name], atol=1e-5, rtol=0, msg=name)
    assert model.encoder(batch.ids_T, batch.rows).shape == (22, 16)


def test_only_half_precision_on_a_cpu_is_rounded_up(monkeypatch):
    seen = []
    monkeypatch.setattr(bert.PostNormLayer, "before", lambda self, x: seen.append(len(x)) or self.attention.qkv(x))
    model, batch = make(nsp=False).eval(), collate([instance(9, [1], is_next=None)])
    model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(batch)
    assert seen == [9, 9, 64, 64]


def test_micro_batches_add_up_to_the_whole_batch():
    model = make().eval()
    whole = model(collate(three()))
    parts = [model(collate([each])) for each in three()]
    for number, term in enumerate(whole):
        torch.testing.assert_close(sum(part[number].sum for part in parts), term.sum, atol=1e-5, rtol=1e-5)
        assert sum(part[number].count for part in parts) == term.count
        assert sum(int(part[number].correct) for part in parts) == int(term.correct)


@pytest.mark.parametrize("nsp", [True, False])
def test_every_parameter_gets_a_gradient(nsp):
    model = make(nsp).train()
    sum(term.sum / term.count for term in model(collate(three()))).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert ("encoder.pooler.weight" in dict(model.named_parameters())) is nsp


def test_a_batch_without_targets_counts_none():
    model = make(nsp=False)
    [term] = model(collate([instance(5, [], is_next=None)]))
    term.sum.backward()
    assert (term.count, float(term.sum.detach()), int(term.correct)) == (0, 0.0, 0)


def test_the_word_table_is_trained_from_both_ends():
    model = make(nsp=False)
    names = [name for name, _ in model.named_parameters()]
    assert names.count("encoder.embed.words.weight") == 1
    assert not any("table" in name for name in names)
    assert model.mlm.table_VD is model.encoder.embed.words.weight


def test_pairs_and_poolers_must_be_there():
    with pytest.raises(InputError, match="this encoder has none"):
        BertPretraining(Bert(CONFIG, pooler=False), nsp=True)
    with pytest.raises(InputError, match="the batch has no sentence pairs"):
        make()(collate([instance(5, [1], is_next=None)]))


def test_a_few_steps_learn_a_batch_by_heart():
    model, batch = fresh_pretraining(Bert(CONFIG), nsp=True, seed=1), collate(three())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = sum(term.sum / term.count for term in model(batch))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_a_seed_fixes_all_weights():
    one, same, other = (fresh_pretraining(Bert(CONFIG), nsp=True, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
