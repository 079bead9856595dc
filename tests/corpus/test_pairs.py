"""The instance tables against the rules of the paper's code, written out token by token, and against chance."""

import numpy as np
import pytest

from bertsmith.base.seeds import stream
from bertsmith.corpus.pairs import instance_table, instance_table_single, report_of
from bertsmith.errors import ConfigError, CorpusError


class FakeShard:
    """A shard in memory; token t of the shard is the number t, so that a token says where it came from."""

    def __init__(self, documents):
        sentences = [length for document in documents for length in document]
        self.sentence_starts = np.concatenate(([0], np.cumsum(sentences, dtype=np.int64)))
        self.document_starts = np.concatenate(
            ([0], np.cumsum([len(document) for document in documents], dtype=np.int64))
        )
        self.tokens = np.arange(sum(sentences), dtype=np.uint32)


class FakeCorpus:
    def __init__(self, *shards):
        self.shards = [FakeShard(documents) for documents in shards]
        self.documents = sum(len(documents) for documents in shards)


def random_documents(seed, count, *, sentences=12, tokens=30):
    """Sentence lengths of some documents; zeros never."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, tokens, rng.integers(1, sentences + 1)).tolist() for _ in range(count)]


def quantile(freedom):
    """The 99.9 % point of chi-square (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.09 * part**0.5) ** 3


def chi_square(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(((observed - expected) ** 2 / expected).sum())


def document_of(shard, token):
    sentence = np.searchsorted(shard.sentence_starts, token, side="right") - 1
    return int(np.searchsorted(shard.document_starts, sentence, side="right") - 1)


def joined(sentences):
    return [token for sentence in sentences for token in sentence]


def by_the_paper(shard, draw, cut, *, length, short_rate=0.1, random_next_rate=0.5):
    """The rules of 2018 with lists of tokens; random numbers come in the order in which the table takes them."""
    bounds = list(zip(shard.sentence_starts, shard.sentence_starts[1:], strict=False))
    sentences = [shard.tokens[start:end].tolist() for start, end in bounds]
    edges = list(zip(shard.document_starts, shard.document_starts[1:], strict=False))
    documents = [sentences[start:end] for start, end in edges]
    most = length - 3
    for number, document in enumerate(documents):
        short = draw() < short_rate
        target = 2 + int(draw() * (most - 1)) if short else most
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                split = 1 + int(draw() * (len(chunk) - 1)) if len(chunk) > 1 else 1
                a, b = joined(chunk[:split]), []
                is_next = not (len(chunk) == 1 or draw() < random_next_rate)
                if is_next:
                    b = joined(chunk[split:])
                else:
                    others = [other for other in range(len(documents)) if other != number]
                    other = documents[others[int(draw() * len(others))]]
                    for sentence in other[int(draw() * len(other)) :]:
                        b = b + sentence
                        if len(b) >= target - len(a):
                            break
                    i -= len(chunk) - split
                whole = (list(a), list(b))
                while len(a) + len(b) > most:
                    longer = a if len(a) > len(b) else b
                    del longer[0 if cut() < 0.5 else -1]
                yield a, b, is_next, len(chunk), short, whole
                chunk = []
            i += 1


def bulk_draws(seed, epoch, shard):
    numbers = iter(stream(seed, "pairs", epoch, shard).random(200_000).tolist())
    return lambda: next(numbers)


@pytest.mark.parametrize("length", [5, 16, 64, 300])
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_rules_of_the_paper(length, epoch):
    corpus = FakeCorpus(random_documents(length, 40))
    table = instance_table(corpus, 0, seed=3, epoch=epoch, length=length)
    expected = list(
        by_the_paper(corpus.shards[0], bulk_draws(3, epoch, 0), np.random.default_rng(0).random, length=length)
    )
    assert len(table) == len(expected)
    for row, (a, b, is_next, sentences, short, (whole_a, whole_b)) in enumerate(expected):
        # Which end lost a token is another draw; how many it lost, and from what, is not.
        ours_a = list(range(table.a_start[row], table.a_end[row]))
        ours_b = list(range(table.b_start[row], table.b_end[row]))
        assert (len(ours_a), len(ours_b)) == (len(a), len(b))
        assert set(ours_a) <= set(whole_a)
        assert set(ours_b) <= set(whole_b)
        assert (table.is_next[row], table.sentences[row], table.short[row]) == (is_next, sentences, short)
        if len(whole_a) + len(whole_b) <= length - 3:
            assert (ours_a, ours_b) == (whole_a, whole_b)


@pytest.mark.parametrize("shards", [1, 3])
def test_invariants(shards):
    corpus = FakeCorpus(*(random_documents(number, 60) for number in range(shards)))
    for index, shard in enumerate(corpus.shards):
        table = instance_table(corpus, index, seed=0, epoch=0, length=64)
        assert table.lengths.max() <= 64
        assert (table.a_end > table.a_start).all()
        assert (table.b_end > table.b_start).all()
        assert (table.b_shard == index).all()
        assert not table.is_next[table.sentences == 1].any()
        for a_start, a_end, b_start, b_end, is_next in zip(
            table.a_start, table.a_end, table.b_start, table.b_end, table.is_next, strict=True
        ):
            document_a, document_b = document_of(shard, a_start), document_of(shard, b_start)
            assert document_of(shard, a_end - 1) == document_a
            assert document_of(shard, b_end - 1) == document_b
            assert (document_a == document_b) == is_next
            assert not is_next or a_end <= b_start


def test_every_token_is_used_where_nothing_is_cut():
    """Unused sentences are put back: with room to spare, A and true B cover each document without a gap."""
    corpus = FakeCorpus(random_documents(5, 50, sentences=6, tokens=9))
    table = instance_table(corpus, 0, seed=1, epoch=0, length=5_000, short_rate=0.0)
    used = np.zeros(len(corpus.shards[0].tokens), dtype=int)
    for row in range(len(table)):
        used[table.a_start[row] : table.a_end[row]] += 1
        if table.is_next[row]:
            used[table.b_start[row] : table.b_end[row]] += 1
    assert (used == 1).all()


def test_the_same_arguments_give_the_same_table_and_others_another():
    corpus = FakeCorpus(random_documents(0, 50), random_documents(1, 50))
    one, again = (instance_table(corpus, 0, seed=7, epoch=2, length=32) for _ in range(2))
    assert all(np.array_equal(getattr(one, name), getattr(again, name)) for name in ("a_start", "b_end", "is_next"))
    for change in ({"seed": 8}, {"epoch": 3}):
        other = instance_table(corpus, 0, **({"seed": 7, "epoch": 2, "length": 32} | change))
        assert not np.array_equal(one.a_start, other.a_start)


def test_shares_of_random_next_and_of_short_documents():
    corpus = FakeCorpus([[10] * 60 for _ in range(3_000)])
    report = instance_table(corpus, 0, seed=0, epoch=0, length=64).report()
    several = report["instances"] * report["several_sentences"]
    assert abs(report["random_next_of_several"] - 0.5) < 3.3 * 0.5 / several**0.5
    assert report["random_next"] >= report["random_next_of_several"]
    # Short is drawn for a document: one long sentence each makes documents and instances the same thing.
    single = instance_table(FakeCorpus([[80]] * 20_000), 0, seed=0, epoch=0, length=64)
    assert abs(single.short.mean() - 0.1) < 3.3 * (0.09 / 20_000) ** 0.5
    assert not single.is_next.any()
    assert instance_table(corpus, 0, seed=0, epoch=0, length=64, short_rate=0.0).short.sum() == 0


def test_other_rates_of_random_next():
    corpus = FakeCorpus([[10] * 60 for _ in range(500)])
    for rate in (0.0, 1.0):
        table = instance_table(corpus, 0, seed=0, epoch=0, length=64, random_next_rate=rate)
        assert (~table.is_next[table.sentences > 1]).mean() == rate


def test_short_targets_are_uniform():
    """A document of one-token sentences that is cut at its target: the chunk's size is the target."""
    corpus = FakeCorpus([[1] * 12 for _ in range(6_000)])
    table = instance_table(corpus, 0, seed=0, epoch=0, length=12 + 3, short_rate=1.0)
    first_of_document = table.a_start % 12 == 0
    targets = np.bincount(table.sentences[first_of_document], minlength=13)[2:]
    assert chi_square(targets, [6_000 / 11] * 11) < quantile(10)


def test_split_points_partners_and_their_first_sentences_are_uniform():
    corpus = FakeCorpus([[4] * 8 for _ in range(21)])
    tables = [instance_table(corpus, 0, seed=0, epoch=epoch, length=35, short_rate=0.0) for epoch in range(200)]
    whole = [(table, row) for table in tables for row in np.flatnonzero(table.sentences == 8)]
    splits = [(table.a_end[row] - table.a_start[row]) // 4 for table, row in whole]
    assert chi_square(np.bincount(splits, minlength=8)[1:], [len(splits) / 7] * 7) < quantile(6)
    partners, first = np.zeros((21, 21)), np.zeros(8)
    for table, row in whole:
        if not table.is_next[row]:
            partners[table.a_start[row] // 32, table.b_start[row] // 32] += 1
            first[table.b_start[row] % 32 // 4] += 1
    assert np.trace(partners) == 0
    others = partners[~np.eye(21, dtype=bool)]
    assert chi_square(others, [others.mean()] * 420) < quantile(419)
    assert chi_square(first, [first.mean()] * 8) < quantile(7)


def test_cuts_fall_on_both_ends_as_with_a_coin_a_token():
    corpus = FakeCorpus([[40] for _ in range(8_000)])
    table = instance_table(corpus, 0, seed=0, epoch=0, length=73, short_rate=0.0)  # 10 of 80 tokens too many
    assert ((table.a_end - table.a_start) == 35).all()
    assert ((table.b_end - table.b_start) == 35).all()
    coins = np.random.default_rng(1).random((200_000, 5)) < 0.5
    expected = np.bincount(coins.sum(1), minlength=6) * (8_000 / 200_000)
    for starts in (table.a_start, table.b_start):
        assert chi_square(np.bincount(starts % 40, minlength=6), expected) < quantile(5)


@pytest.mark.parametrize(("a", "b"), [(30, 1), (1, 30), (20, 21), (15, 15), (9, 60)])
def test_the_longer_segment_is_cut_first(a, b):
    """With two documents of one sentence, A is one and B the other."""
    table = instance_table(FakeCorpus([[a], [b]]), 0, seed=0, epoch=0, length=25, short_rate=0.0)
    kept = [a, b]
    while sum(kept) > 22:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert (table.a_end[0] - table.a_start[0], table.b_end[0] - table.b_start[0]) == tuple(kept)


def test_a_shard_with_one_document_borrows_from_others():
    corpus = FakeCorpus([[5] * 1_000], [[5] * 50], random_documents(1, 3))
    table = instance_table(corpus, 0, seed=0, epoch=0, length=32)
    assert set(table.b_shard[~table.is_next]) == {1, 2}
    assert set(table.b_shard[table.is_next]) == {0}
    for shard, end in zip(table.b_shard, table.b_end, strict=True):
        assert end <= corpus.shards[shard].sentence_starts[-1]


def test_one_document_is_refused():
    for shards in ([[5] * 100],), ([[5, 5]], []), ([[5, 5], [0]],):
        with pytest.raises(CorpusError, match="1 document with text"):
            instance_table(FakeCorpus(*shards), 0, seed=0, epoch=0, length=32)


def test_empty_sentences_and_documents_are_as_if_not_there():
    documents = random_documents(2, 30)
    with_empty = [[0], *([0, *document, 0] for document in documents), [], [0, 0]]
    plain, padded = FakeCorpus(documents), FakeCorpus(with_empty)
    for build in (instance_table, instance_table_single):
        one, other = (build(corpus, 0, seed=0, epoch=0, length=40) for corpus in (plain, padded))
        assert np.array_equal(one.a_start, other.a_start)
        assert np.array_equal(one.b_end, other.b_end)
        assert one.report() == other.report()


def test_a_shard_without_documents_gives_an_empty_table():
    corpus = FakeCorpus([], random_documents(0, 4))
    assert len(instance_table(corpus, 0, seed=0, epoch=0, length=40)) == 0
    assert instance_table(corpus, 0, seed=0, epoch=0, length=40).report()["random_next"] == 0.0


def test_the_report_warns_of_documents_of_one_sentence():
    good = instance_table(FakeCorpus(random_documents(0, 40)), 0, seed=0, epoch=0, length=40)
    lines = instance_table(FakeCorpus([[9]] * 30 + [[9, 9]] * 10), 0, seed=0, epoch=0, length=40)
    assert good.report()["warning"] is None
    assert "30 of 40 documents have one sentence" in lines.report()["warning"]
    both = report_of([good, lines])
    assert both["instances"] == len(good) + len(lines)
    assert both["documents"] == 80
    assert both["longest"] <= 40
    assert both["mean_length"] == pytest.approx(np.concatenate([good.lengths, lines.lengths]).mean())


def test_single_uses_every_token_once_within_documents():
    corpus = FakeCorpus(random_documents(0, 50, tokens=90))
    shard = corpus.shards[0]
    table = instance_table_single(corpus, 0, seed=0, epoch=0, length=64)
    assert table.lengths.max() == 64
    assert (table.a_end > table.a_start).all()
    assert not table.pairs
    assert table.a_start[0] == 0
    assert table.a_end[-1] == len(shard.tokens)
    assert np.array_equal(table.a_end[:-1], table.a_start[1:])
    assert all(
        document_of(shard, start) == document_of(shard, end - 1)
        for start, end in zip(table.a_start, table.a_end, strict=True)
    )
    assert "random_next" not in table.report()


def test_single_keeps_sentences_whole_where_they_fit():
    table = instance_table_single(FakeCorpus([[4, 4, 4, 25, 3, 1], [2]]), 0, seed=0, epoch=0, length=12, short_rate=0.0)
    ranges = list(zip(table.a_start.tolist(), table.a_end.tolist(), strict=True))
    assert ranges == [(0, 8), (8, 12), (12, 22), (22, 32), (32, 41), (41, 43)]
    assert table.sentences.tolist() == [2, 1, 1, 1, 3, 1]


def test_single_short_rate():
    table = instance_table_single(FakeCorpus([[1] * 200_000]), 0, seed=0, epoch=0, length=34)
    assert abs(table.short.mean() - 0.1) < 3.3 * (0.09 / len(table)) ** 0.5
    short = (table.a_end - table.a_start)[table.short]
    assert short.min() >= 2
    assert short.max() <= 32


@pytest.mark.parametrize(
    "settings", [{"length": 4}, {"length": 32, "short_rate": 1.5}, {"length": 32, "short_rate": -0.1}]
)
def test_impossible_settings(settings):
    for build in (instance_table, instance_table_single):
        with pytest.raises(ConfigError):
            build(FakeCorpus(random_documents(0, 4)), 0, seed=0, epoch=0, **settings)
