"""Answers in batches are the answers one by one, in the order asked, and bad questions are refused."""

import io

import numpy as np
import pytest
import torch

from bertsmith.base.log import Log
from bertsmith.errors import InputError
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn.heads import LabelHead, MlmHead
from bertsmith.nn.layers import initialise
from bertsmith.tasks.label import LabelModel, collate
from bertsmith.tasks.predict import batches_within, encode_texts, fill_masks, predict_labels
from bertsmith.text.normalize import Normalizer
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import Vocabulary

WORDS = ["the", "cat", "sat", "on", "mat", "정말", "좋은", "영화", "##가", "!", ".", "a", "##a", "b", "##b"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the cat sat on the mat .", "", "정말 좋은 영화가!", ("the cat", "a b"), "🙂", "a", "the " * 25, ("", "cat")]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(Vocabulary(SPECIAL + WORDS), Normalizer(preset="unicode-safe"))


@pytest.fixture(scope="module")
def encoder():
    config = BertConfig(vocab_size=len(SPECIAL + WORDS), width=16, depth=2, heads=2, ffn_width=32, max_length=24)
    encoder = Bert(config)
    initialise(encoder, 1, std=0.2)
    return encoder


@pytest.fixture(scope="module")
def classifier(encoder):
    head = LabelHead(16, 3, dropout=0.5)
    initialise(head, 2, std=0.5)
    return LabelModel(encoder, head)


@pytest.mark.parametrize("budget", [1, 30, 4_096])
def test_hidden_states_together_are_those_alone(encoder, tokenizer, budget):
    together = encode_texts(encoder, tokenizer, TEXTS, budget=budget)
    assert len(together) == len(TEXTS)
    for text, hidden in zip(TEXTS, together, strict=True):
        alone = encode_texts(encoder, tokenizer, [text])[0]
        assert hidden.dtype == np.float32
        assert hidden.shape == alone.shape
        np.testing.assert_allclose(hidden, alone, atol=1e-6)


@pytest.mark.parametrize("budget", [1, 30, 4_096])
def test_labels_together_are_those_alone_in_order(classifier, tokenizer, budget):
    together = predict_labels(classifier, tokenizer, TEXTS, ["x", "y", "z"], budget=budget)
    assert len({prediction.label for prediction in together}) > 1
    for text, prediction in zip(TEXTS, together, strict=True):
        alone = predict_labels(classifier, tokenizer, [text], ["x", "y", "z"])[0]
        assert prediction.label == alone.label
        assert prediction.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.probabilities[prediction.label] == max(prediction.probabilities.values())


def test_nothing_asked_nothing_answered(encoder, classifier, tokenizer):
    assert encode_texts(encoder, tokenizer, []) == []
    assert predict_labels(classifier, tokenizer, [], ["x", "y", "z"]) == []


def test_cut_texts_are_counted_in_one_warning(encoder, tokenizer):
    screen = io.StringIO()
    hidden = encode_texts(encoder, tokenizer, TEXTS, log=Log(screen=screen))
    assert hidden[6].shape == (24, 16)
    assert screen.getvalue().count("warning") == 1
    assert "1 of 8 texts are longer than 24 tokens; 3 tokens were cut off" in screen.getvalue()


def test_wrong_questions(encoder, classifier, tokenizer):
    with pytest.raises(InputError, match="at most 24 tokens"):
        encode_texts(encoder, tokenizer, ["a"], max_length=25)
    with pytest.raises(InputError, match="2 label names for a head of 3"):
        predict_labels(classifier, tokenizer, ["a"], ["x", "y"])
    with pytest.raises(InputError, match="put it in a list"):
        encode_texts(encoder, tokenizer, "the cat")
    with pytest.raises(InputError, match="has no loss"):
        classifier(collate([tokenizer.encode("a")]))
    with pytest.raises(InputError, match="1 texts and 2 labels"):
        collate([tokenizer.encode("a")], [1, 2])


def test_batches_hold_every_index_once_within_the_budget():
    lengths = [3, 9, 1, 4, 30, 2, 2]
    batches = batches_within(lengths, 10)
    assert sorted(index for batch in batches for index in batch) == list(range(7))
    assert all(sum(lengths[i] for i in batch) <= 10 or len(batch) == 1 for batch in batches)
    flat = [lengths[i] for batch in batches for i in batch]
    assert flat == sorted(lengths, reverse=True)


def test_masks_are_filled_with_the_models_own_probabilities(encoder, tokenizer):
    mlm = MlmHead(encoder.embed.words.weight, norm_eps=1e-12)
    initialise(mlm, 3, std=0.5)
    text = "the [MASK] sat on the [MASK]"
    filled = fill_masks(encoder, mlm, tokenizer, text, top=5)
    assert [len(mask) for mask in filled] == [5, 5]
    ids = tokenizer.encode(text).ids
    batch = collate([tokenizer.encode(text)])
    with torch.no_grad():
        logits = mlm(encoder(batch.ids_T, batch.rows, batch.segments_T))
    places = [place for place, piece in enumerate(ids) if piece == tokenizer.vocabulary.mask_id]
    for place, mask in zip(places, filled, strict=True):
        probabilities = logits[place].double().softmax(-1)
        assert mask[0][0] == tokenizer.vocabulary.pieces[int(probabilities.argmax())]
        assert [p for _, p in mask] == pytest.approx(probabilities.topk(5).values.tolist())
    whole = fill_masks(encoder, mlm, tokenizer, text, top=1_000)[0]
    assert len(whole) == len(tokenizer.vocabulary.pieces)
    assert sum(p for _, p in whole) == pytest.approx(1)


def test_masks_that_cannot_be_filled(encoder, tokenizer):
    mlm = MlmHead(encoder.embed.words.weight, norm_eps=1e-12)
    with pytest.raises(InputError, match=r"no \[MASK\]"):
        fill_masks(encoder, mlm, tokenizer, "the mask")
    with pytest.raises(InputError, match="beyond the 24"):
        fill_masks(encoder, mlm, tokenizer, "the " * 40 + "[MASK]")
    with pytest.raises(InputError, match="beyond the 24"):  # what is cut off could change the answer
        fill_masks(encoder, mlm, tokenizer, "[MASK] " + "the " * 40)
    with pytest.raises(InputError, match="top 0"):
        fill_masks(encoder, mlm, tokenizer, "the [MASK]", top=0)
