"""Held-out scores: the same every time, whatever the batch, beside two baselines that are counted by hand."""

import math

import pytest
import torch

from bertsmith.base.log import Log
from bertsmith.corpus.instances import Instances
from bertsmith.corpus.prepare import prepare
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn.device import Precision
from bertsmith.objectives.pretraining import fresh_pretraining
from bertsmith.text.vocabulary import SPECIAL_PIECES
from bertsmith.train.heldout import evaluate_pretraining, log_shares, piece_frequencies

WORDS = ["the", "cat", "dog", "sat", "ran", "."]
CPU, FP32 = torch.device("cpu"), Precision("fp32", "for the test")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    home = tmp_path_factory.mktemp("heldout")
    (home / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *WORDS]) + "\n")
    sentences = ["The cat sat .", "The dog ran .", "The the the dog sat ."]
    documents = ["\n\n".join(sentences[at % 3 :] * 4) for at in range(9)]
    (home / "text.txt").write_text("".join(f"<doc>\n{text}\n</doc>\n" for text in documents))
    return prepare([home / "text.txt"], tokenizer_folder=home / "vocab.txt", out=home / "corpus", log=Log(quiet=True))


@pytest.fixture(scope="module")
def instances(corpus):
    return Instances(corpus, corpus.tokenizer().vocabulary, length=24, seed=0)


@pytest.fixture(scope="module")
def model():
    config = BertConfig(vocab_size=11, width=8, depth=1, heads=2, ffn_width=16, max_length=24)
    return fresh_pretraining(Bert(config), nsp=True, seed=1).train()


def scores(model, instances, **more):
    return evaluate_pretraining(model, instances, device=CPU, precision=FP32, **({"rows": 10} | more))


def test_the_same_every_time_whatever_the_batch_and_without_dropout(model, instances):
    first = scores(model, instances)
    assert first == scores(model, instances)
    assert model.training
    assert first == pytest.approx(scores(model, instances, batch=3), abs=1e-6)
    assert first["rows"] == 10
    assert first["targets"] == sum(len(instance.targets) for instance in instances.heldout(10))
    assert first["mlm_loss"] == pytest.approx(math.log(11), abs=0.1)  # fresh weights know nothing


def test_baselines_are_those_of_the_training_text(model, corpus, instances):
    counts = piece_frequencies(corpus, 11)
    assert counts.sum() == corpus.tokens
    assert WORDS[int(counts.argmax()) - len(SPECIAL_PIECES)] == "the"
    found = scores(model, instances, frequencies=counts)
    targets = [int(target) for instance in instances.heldout(10) for target in instance.targets]
    assert found["frequent_accuracy"] == pytest.approx(targets.count(int(counts.argmax())) / len(targets))
    shares = [(int(count) + 1) / (int(counts.sum()) + 11) for count in counts]
    by_hand = -sum(math.log(shares[target]) for target in targets) / len(targets)
    assert found["frequent_loss"] == pytest.approx(by_hand)
    assert float(log_shares(counts).exp().sum()) == pytest.approx(1)
