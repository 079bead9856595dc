"""Assembly, order, positions and purity of instances, on a corpus in memory and on a prepared one."""

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertsmith.base.log import Log
from bertsmith.corpus.instances import Instances, Position
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.errors import ConfigError, CorpusError
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import Vocabulary

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = Vocabulary([*SPECIAL, "[unused0]", *(f"w{number}" for number in range(192))])


class FakeShard:
    """A shard in memory; token t of the shard is piece 6 + t mod 192, every 50th is [UNK]; words of three pieces."""

    def __init__(self, documents):
        sentences = [length for document in documents for length in document]
        self.sentence_starts = np.concatenate(([0], np.cumsum(sentences, dtype=np.int64)))
        self.document_starts = np.concatenate(
            ([0], np.cumsum([len(document) for document in documents], dtype=np.int64))
        )
        numbers = np.arange(sum(sentences))
        self.tokens = np.where(numbers % 50 == 49, 1, 6 + numbers % 192).astype(np.uint16)

    def word_starts(self, start, end):
        return np.arange(start, end) % 3 == 0


def fake_corpus(shards=5, documents=8, *, sentences=6, seed=0):
    rng = np.random.default_rng(seed)
    made = [
        FakeShard([rng.integers(1, 20, sentences).tolist() for _ in range(documents + number)])
        for number in range(shards)
    ]
    return SimpleNamespace(
        shards=made,
        documents=sum(len(shard.document_starts) - 1 for shard in made),
        tokens=sum(len(shard.tokens) for shard in made),
        manifest={"vocabulary_size": len(VOCABULARY)},
        folder=Path("corpus"),
        tokenizer_folder=Path("corpus/tokenizer"),
    )


def instances(corpus=None, **settings):
    return Instances(corpus or fake_corpus(), VOCABULARY, **({"length": 48, "seed": 3} | settings))


def key(instance):
    arrays = (instance.ids, instance.segments, instance.positions, instance.targets)
    return (*(array.tobytes() for array in arrays), instance.is_next)


def keys(batch):
    return [key(instance) for instance in batch]


def uncorrupted(instance):
    ids = instance.ids.copy()
    ids[instance.positions] = instance.targets
    return ids


def epoch_of(made, epoch=0):
    """All instances of an epoch in their order."""
    found, stream, after = [], made.stream(Position(epoch), 1), Position(epoch)
    while after.epoch == epoch:
        batch, after = next(stream)
        found += batch
    return found


def check_shape(instance, *, length, pairs, vocabulary):
    ids, segments = uncorrupted(instance), instance.segments
    seps = np.flatnonzero(ids == vocabulary.sep_id)
    assert len(ids) == len(segments) <= length
    assert {array.dtype for array in (instance.ids, segments, instance.positions, instance.targets)} == {
        np.dtype("int64")
    }
    assert ids[0] == vocabulary.cls_id
    assert seps[-1] == len(ids) - 1
    assert len(seps) == (2 if pairs else 1)
    assert np.array_equal(segments, (np.arange(len(ids)) > seps[0]).astype(int))
    assert not set(instance.targets.tolist()) & vocabulary.special_ids
    assert (np.diff(instance.positions) > 0).all()
    assert isinstance(instance.is_next, bool) if pairs else instance.is_next is None


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_what_an_instance_is(objective, whole_word):
    made = instances(objective=objective, whole_word=whole_word)
    for instance in epoch_of(made):
        check_shape(instance, length=48, pairs=objective == "mlm+nsp", vocabulary=VOCABULARY)
        ordinary = (~np.isin(uncorrupted(instance), sorted(VOCABULARY.special_ids))).sum()
        count = min(8, max(1, round(0.15 * len(instance.ids))), ordinary)
        assert len(instance.positions) <= count if whole_word else len(instance.positions) == count


def test_tokens_are_those_of_the_table():
    """Seen through epoch 0 of one shard: every instance is a row of its table, each row once."""
    corpus = fake_corpus(shards=1)
    made = instances(corpus)
    table = made.table(0, 0)
    tokens = corpus.shards[0].tokens
    a, b = [
        [tokens[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
        for starts, ends in ((table.a_start, table.a_end), (table.b_start, table.b_end))
    ]
    expected = sorted((2, *a[row], 3, *b[row], 3) for row in range(len(table)))
    assert sorted(tuple(uncorrupted(instance).tolist()) for instance in epoch_of(made)) == expected


def test_whole_words_are_not_split():
    checked = 0
    for instance in epoch_of(instances(whole_word=True, objective="mlm", short_rate=0.0)):
        ids, chosen = uncorrupted(instance), set(instance.positions.tolist())
        if len(ids) < 17:  # 15 % of it are less than a word of three pieces
            assert 1 <= len(chosen) <= 2
            continue
        for place in range(2, len(ids) - 1):
            if min(ids[place - 1], ids[place]) >= 6 and (ids[place] - 6) % 3 != 0:  # goes on with the word before it
                assert (place in chosen) == (place - 1 in chosen)
                checked += place in chosen
    assert checked > 100


def test_an_epoch_is_every_table_once_in_a_mixed_order():
    made = instances()
    everything = epoch_of(made)
    assert len(everything) == sum(len(made.table(0, shard)) for shard in range(5))
    assert len(set(keys(everything))) == len(everything)
    in_order = made.heldout(10**6)
    assert len(in_order) == sum(len(made.table(0, shard, seed=0)) for shard in range(5))
    assert keys(everything) != keys(epoch_of(made, 1))
    again = instances()
    assert keys(everything) == keys(epoch_of(again))
    assert keys(everything) != keys(epoch_of(instances(seed=4)))


@pytest.mark.parametrize("open_shards", [1, 2, 4, 9])
@pytest.mark.parametrize("size", [1, 7, 32])
def test_starting_from_any_position_gives_what_would_have_come(open_shards, size):
    made = instances(open_shards=open_shards)
    steps = 3 * len(epoch_of(made)) // size  # three epochs, so tails flow over
    run = list(islice(made.stream(Position(), size), steps))
    assert all(len(batch) == size for batch, _ in run)
    assert run[-1][1].epoch >= 2
    for at in range(0, steps - 1, max(1, steps // 9)):
        resumed = list(islice(instances(open_shards=open_shards).stream(run[at][1], size), 2))
        for (batch, after), (expected, expected_after) in zip(resumed, run[at + 1 : at + 3], strict=False):
            assert keys(batch) == keys(expected)
            assert after == expected_after


def test_batches_larger_than_an_epoch():
    made = instances(fake_corpus(shards=2, documents=2))
    batch, after = next(made.stream(Position(), 500))
    assert len(batch) == 500
    assert after.epoch > 3
    single = [instance for each, _ in islice(made.stream(Position(), 1), 500) for instance in each]
    assert keys(batch) == keys(single)


def test_two_streams_do_not_disturb_each_other():
    made = instances()
    one, other = made.stream(Position(), 4), made.stream(Position(), 4)
    for _ in range(20):
        assert keys(next(one)[0]) == keys(next(other)[0])


def test_only_the_block_of_the_position_is_built(monkeypatch):
    made = instances(fake_corpus(shards=12), open_shards=2)
    built = []
    build = Instances.table
    monkeypatch.setattr(
        Instances, "table", lambda self, *given, **named: built.append(given) or build(self, *given, **named)
    )
    next(made.stream(Position(5, 3, 2), 4))
    assert len(built) == 2
    assert {epoch for epoch, _ in built} == {5}


def test_static_copies_come_again():
    made = instances(dupe_factor=2)
    epochs = [keys(epoch_of(made, epoch)) for epoch in range(4)]
    assert set(epochs[0]) == set(epochs[2])
    assert set(epochs[1]) == set(epochs[3])
    assert set(epochs[0]) != set(epochs[1])
    assert epochs[0] != epochs[2]  # the order is fresh
    assert set(epochs[0]) == set(keys(epoch_of(instances(), 0)))


def test_masks_change_from_epoch_to_epoch_where_texts_do_not():
    made = instances(fake_corpus(shards=1, documents=40), objective="mlm", short_rate=0.0)
    first, second = epoch_of(made, 0), epoch_of(made, 1)
    texts = [sorted(uncorrupted(instance).tobytes() for instance in epoch) for epoch in (first, second)]
    assert texts[0] == texts[1]
    assert [len(instance.ids) for instance in first] != [len(instance.ids) for instance in second]
    common = set(keys(first)) & set(keys(second))  # an instance of a few tokens may have the same masks by chance
    assert len(common) < 0.05 * len(first)


def test_heldout_is_fixed_whatever_the_seed():
    first, other = instances(seed=1), instances(seed=2)
    assert keys(first.heldout(20)) == keys(other.heldout(20)) == keys(first.heldout(1_000))[:20]
    assert len(first.heldout(20)) == 20
    assert first.heldout(0) == []


def test_masked_positions_are_uniform_over_instances():
    """Neighbouring instances take neighbouring counters of one key: their masks are unrelated all the same."""
    corpus = fake_corpus(shards=1, documents=200, sentences=30)
    made = instances(corpus, objective="mlm", length=42, short_rate=0.0)
    full = [instance for instance in made.heldout(10**6) if len(instance.ids) >= 40]  # in the order of the table
    ids = np.stack([uncorrupted(instance)[:39] for instance in full])
    hits = np.zeros(ids.shape)
    for row, instance in enumerate(full):
        hits[row, instance.positions[instance.positions < 39]] = 1
    hits, ordinary = hits[:, 1:], (ids != 1)[:, 1:]
    rates = hits.sum(0) / ordinary.sum(0)
    spread = (rates.mean() * (1 - rates.mean()) / ordinary.sum(0).mean()) ** 0.5
    assert np.abs(rates - rates.mean()).max() < 4 * spread
    both = (hits[1:] * hits[:-1]).mean()
    assert abs(both - hits.mean() ** 2) < 0.1 * hits.mean() ** 2


def test_report_of_some_shards_is_an_estimate():
    made = instances(fake_corpus(shards=20))
    some, all_of_it = made.report(4), made.report(50)
    assert (some["shards_read"], some["estimated"], all_of_it["shards_read"], all_of_it["estimated"]) == (
        4,
        True,
        20,
        False,
    )
    assert all_of_it["instances_per_epoch"] == all_of_it["instances"]
    assert abs(some["instances_per_epoch"] / all_of_it["instances_per_epoch"] - 1) < 0.3


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "nsp"},
        {"length": 3},
        {"mask_rate": 2.0},
        {"mask_rule": (0.5, 0.5, 0.5)},
        {"coin": "word"},
        {"dupe_factor": 0},
        {"open_shards": 0},
        {"short_rate": 2.0},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(ConfigError):
        instances(**settings)


def test_impossible_positions_and_sizes():
    made = instances()
    for position in (Position(0, 2), Position(-1), Position(0, 0, 10**6)):
        with pytest.raises(CorpusError, match="not in this corpus"):
            next(made.stream(position, 4))
    with pytest.raises(ConfigError):
        next(made.stream(Position(), 0))


def test_impossible_corpora():
    with pytest.raises(CorpusError, match="1 document"):
        instances(fake_corpus(shards=1, documents=1))
    assert instances(fake_corpus(shards=1, documents=1), objective="mlm").heldout(1)
    with pytest.raises(CorpusError, match="no tokens"):
        instances(fake_corpus(shards=1, documents=0))
    corpus = fake_corpus()
    corpus.manifest["vocabulary_size"] = 100
    with pytest.raises(CorpusError, match="100 pieces, this one has 198"):
        instances(corpus)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A corpus that `prepare` made from text, with its tokenizer."""
    folder = tmp_path_factory.mktemp("prepared")
    letters = [*"abcdefghijklmnopqrstuvwxyz.", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    tokenizer = Tokenizer(Vocabulary([*SPECIAL, *letters, "the", "river", "##ing", "sings"]))
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    rng = np.random.default_rng(0)
    words = ["the", "river", "sings", "wading", "old", "stone", "rivering", "moss"]
    documents = ["\n".join(" ".join(rng.choice(words, 7)) + "." for _ in range(12)) for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    prepare(
        [folder / "text.txt"],
        tokenizer_folder=folder / "tokenizer",
        out=folder / "corpus",
        format="lines",
        log=Log(quiet=True),
    )
    return Corpus.open(folder / "corpus"), tokenizer


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_a_prepared_corpus(prepared, objective, whole_word):
    corpus, tokenizer = prepared
    made = Instances(corpus, tokenizer.vocabulary, length=64, seed=0, objective=objective, whole_word=whole_word)
    batch, after = next(made.stream(Position(), 40))
    assert len(batch) == 40
    assert after != Position()
    for instance in batch:
        check_shape(instance, length=64, pairs=objective == "mlm+nsp", vocabulary=tokenizer.vocabulary)
    pieces = [tokenizer.vocabulary.pieces[piece] for piece in uncorrupted(batch[0])]
    assert pieces[0] == "[CLS]"
    assert set(tokenizer.decode(uncorrupted(batch[0]).tolist()).split()) & {
        "the",
        "river",
        "old",
    }
    if whole_word:
        for instance in batch:
            ids, chosen = uncorrupted(instance), set(instance.positions.tolist())
            pieces = [tokenizer.vocabulary.pieces[piece] for piece in ids]
            for place in range(2, len(ids)):
                same_word = pieces[place].startswith("##") and pieces[place - 1] not in SPECIAL
                assert not same_word or ((place in chosen) == (place - 1 in chosen))
    resumed = next(
        Instances(corpus, tokenizer.vocabulary, length=64, seed=0, objective=objective, whole_word=whole_word).stream(
            after, 8
        )
    )
    straight = list(islice(made.stream(Position(), 8), 6))
    assert keys(resumed[0]) == keys(straight[5][0])


def test_a_prepared_corpus_of_one_document_is_refused(prepared, tmp_path):
    _, tokenizer = prepared
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "one.txt").write_text("the river sings.\nthe old stone.\n", encoding="utf-8")
    corpus = prepare(
        [tmp_path / "one.txt"],
        tokenizer_folder=tmp_path / "tokenizer",
        out=tmp_path / "corpus",
        format="lines",
        log=Log(quiet=True),
    )
    with pytest.raises(CorpusError, match="1 document"):
        Instances(corpus, tokenizer.vocabulary, length=64, seed=0)
