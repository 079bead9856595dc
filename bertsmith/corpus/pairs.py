"""Which tokens make an instance: the table of one shard for one epoch, as numpy columns of token ranges.

`instance_table` follows create_pretraining_data.py of Devlin et al. (2018): a target length per document, now and then
a short one; sentences are gathered up to it and split at a random one into A and B; half of the time B comes from
another document and the sentences it displaced go back; the longer segment loses tokens from a random end until both
fit. What differs: the other document is never the same one (2018 gave up after ten tries), and shards are not mixed
unless one has too few documents. `instance_table_single` has no B: whole sentences of one document up to the length.

A and B are ranges of contiguous tokens, so nothing is copied here: a row is five numbers and a label.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from bertsmith.base.seeds import stream
from bertsmith.corpus.shards import Corpus, Shard
from bertsmith.errors import ConfigError, CorpusError

PAIR_SPECIALS = 3  # [CLS] A [SEP] B [SEP]
SINGLE_SPECIALS = 2  # [CLS] A [SEP]
SHORTEST_LENGTH = 5  # two tokens beside three special ones
PARTNER_SHARDS = 4  # a shard with one document borrows from so many others: opening all would cost a pass

DRAWS = 4_096  # uniform numbers taken from the generator at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class InstanceTable:
    """The instances of one shard in one epoch; a column has one entry an instance. Ranges count tokens of a shard."""

    shard: int
    pairs: bool  # False: B is empty, `is_next` means nothing
    a_start: np.ndarray  # int64, in `shard`
    a_end: np.ndarray
    b_shard: np.ndarray
    b_start: np.ndarray  # int64, in `b_shard`
    b_end: np.ndarray
    is_next: np.ndarray  # bool
    sentences: np.ndarray  # int64: of the chunk before it was split; a chunk of one always gets a random next
    short: np.ndarray  # bool: the target length was a short one
    documents: int
    one_sentence_documents: int

    def __len__(self) -> int:
        return len(self.a_start)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each instance, special ones included."""
        specials = PAIR_SPECIALS if self.pairs else SINGLE_SPECIALS
        return (self.a_end - self.a_start) + (self.b_end - self.b_start) + specials

    def report(self) -> dict[str, object]:
        """`report_of` this table alone."""
        return report_of([self])


def instance_table(
    corpus: Corpus,
    shard_index: int,
    *,
    seed: int,
    epoch: int,
    length: int,
    short_rate: float = 0.1,
    random_next_rate: float = 0.5,
) -> InstanceTable:
    """The next-sentence instances of a shard: a pure function of its arguments and the corpus.

    `length` counts the three special tokens. Raises CorpusError where there is no second document to take a random
    next from.
    """
    check_settings(length=length, short_rate=short_rate, random_next_rate=random_next_rate)
    layout = _layout(corpus.shards[shard_index])
    rng = stream(seed, "pairs", epoch, shard_index)
    partner = _partner(corpus, shard_index, layout, stream(seed, "pairs", epoch, shard_index, "partners"))
    starts, documents = layout.starts, layout.documents
    most = length - PAIR_SPECIALS
    draw = _uniforms(rng)
    rows: list[tuple[int, ...]] = []
    for document in range(len(documents) - 1):
        first, end = documents[document], documents[document + 1]
        # The target is drawn once a document, as in 2018, where its comment speaks of sequences: with a short one
        # the whole document becomes short instances.
        short = draw() < short_rate
        target = 2 + int(draw() * (most - 1)) if short else most
        while first < end:
            stop = bisect_left(starts, starts[first] + target, first + 1, end)  # the first sentence end at or past it
            sentences = stop - first
            a_stop = first + 1 + int(draw() * (sentences - 1)) if sentences > 1 else stop
            a_start, a_end = starts[first], starts[a_stop]
            if sentences == 1 or draw() < random_next_rate:
                b_shard, b_starts, b_document, b_document_end = partner(document, draw)
                b_first = b_document + int(draw() * (b_document_end - b_document))
                b_start = b_starts[b_first]
                wanted = b_start + target - (a_end - a_start)
                b_end = b_starts[bisect_left(b_starts, wanted, b_first + 1, b_document_end)]
                rows.append((a_start, a_end, b_shard, b_start, b_end, 0, sentences, short))
                first = a_stop  # the sentences after A were not used: they begin the next chunk
            else:
                rows.append((a_start, a_end, shard_index, a_end, starts[stop], 1, sentences, short))
                first = stop
    table = _table(shard_index, layout, rows, pairs=True)
    _truncate(table, most, stream(seed, "pairs", epoch, shard_index, "cuts"))
    return table


def instance_table_single(
    corpus: Corpus, shard_index: int, *, seed: int, epoch: int, length: int, short_rate: float = 0.1
) -> InstanceTable:
    """Instances without B: whole sentences of one document up to `length` (with [CLS] and [SEP]), every token once.

    A sentence longer than that is cut and goes on in the next instance. Whether an instance is short is drawn for
    each one, not for each document: a long document would otherwise be lost to scraps.
    """
    check_settings(length=length, short_rate=short_rate)
    layout = _layout(corpus.shards[shard_index])
    draw = _uniforms(stream(seed, "pairs", epoch, shard_index))
    starts, documents = layout.starts, layout.documents
    most = length - SINGLE_SPECIALS
    rows: list[tuple[int, ...]] = []
    for document in range(len(documents) - 1):
        first, last = documents[document], documents[document + 1]
        begin, end = starts[first], starts[last]
        while begin < end:
            short = draw() < short_rate
            limit = begin + (2 + int(draw() * (most - 1)) if short else most)
            stop = bisect_right(starts, limit, first + 1, last + 1) - 1  # the last sentence end that fits
            cut = stop == first
            stop_token = min(limit, end) if cut else starts[stop]
            sentences = stop - first + cut
            rows.append((begin, stop_token, shard_index, 0, 0, 0, sentences, short))
            begin, first = stop_token, stop
    return _table(shard_index, layout, rows, pairs=False)


def report_of(tables: Sequence[InstanceTable]) -> dict[str, object]:
    """What the tables hold: counts, shares and mean length; `warning` is a sentence where pairs teach little.

    `random_next` is the share among all instances, `random_next_of_several` among chunks of two sentences or more,
    where the coin decides.
    """
    instances = sum(len(table) for table in tables)
    documents = sum(table.documents for table in tables)
    single = sum(table.one_sentence_documents for table in tables)
    mostly_single = 2 * single > documents
    report: dict[str, object] = {
        "instances": instances,
        "documents": documents,
        "one_sentence_documents": single,
        "mostly_one_sentence": mostly_single,
        "short": _share(sum(int(table.short.sum()) for table in tables), instances),
        "mean_length": _share(sum(int(table.lengths.sum()) for table in tables), instances),
        "longest": max((int(table.lengths.max()) for table in tables if len(table)), default=0),
        "warning": None,
    }
    if all(table.pairs for table in tables):
        several = sum(int((table.sentences > 1).sum()) for table in tables)
        random_several = sum(int((~table.is_next & (table.sentences > 1)).sum()) for table in tables)
        report["random_next"] = _share(sum(int((~table.is_next).sum()) for table in tables), instances)
        report["random_next_of_several"] = _share(random_several, several)
        report["several_sentences"] = _share(several, instances)
        if mostly_single:
            report["warning"] = (
                f"{single:,} of {documents:,} documents have one sentence: they never give a true next sentence. "
                "Is every line a document? Join what belongs together, or pre-train with objective 'mlm'."
            )
    return report


def check_settings(*, length: int, short_rate: float, random_next_rate: float = 0.5) -> None:
    """ConfigError if no table can be built with these."""
    if length < SHORTEST_LENGTH:
        raise ConfigError(
            f"length {length}: an instance needs at least {SHORTEST_LENGTH} tokens, special ones included"
        )
    for name, rate in (("short_rate", short_rate), ("random_next_rate", random_next_rate)):
        if not 0.0 <= rate <= 1.0:
            raise ConfigError(f"{name} {rate}: expected a share between 0 and 1")


@dataclass(frozen=True, eq=False)
class _Layout:
    """A shard's sentences and documents without empty ones; lists, as bisect and indexing are faster on them."""

    starts: list[int]  # token offset of each sentence, and the end
    documents: list[int]  # index into `starts` of each document, and the end


def _layout(shard: Shard) -> _Layout:
    starts = np.asarray(shard.sentence_starts)
    filled = np.diff(starts) > 0  # 2018 drops sentences of no tokens while reading
    kept_before = np.concatenate(([0], np.cumsum(filled)))
    documents = np.unique(kept_before[np.asarray(shard.document_starts)])
    starts = np.append(starts[:-1][filled], starts[-1:])
    return _Layout(starts.tolist(), documents.tolist())


_Partner = Callable[[int, Callable[[], float]], tuple[int, list[int], int, int]]


def _partner(corpus: Corpus, shard_index: int, layout: _Layout, rng: np.random.Generator) -> _Partner:
    """The draw of another document than this one: (shard, its sentence starts, first sentence, end)."""
    documents = layout.documents
    if len(documents) > 2:

        def here(document: int, draw: Callable[[], float]) -> tuple[int, list[int], int, int]:
            other = int(draw() * (len(documents) - 2))
            other += other >= document
            return shard_index, layout.starts, documents[other], documents[other + 1]

        return here

    pool: list[tuple[int, list[int], int, int]] = []
    used = 0
    for index in rng.permutation(len(corpus.shards)).tolist() if len(documents) == 2 else ():
        if index != shard_index and used < PARTNER_SHARDS:
            theirs = _layout(corpus.shards[index])
            pool += [
                (index, theirs.starts, *pair) for pair in zip(theirs.documents, theirs.documents[1:], strict=False)
            ]
            used += len(theirs.documents) > 1
    if not pool and len(documents) == 2:
        raise one_document_error()
    return lambda document, draw: pool[int(draw() * len(pool))]


def one_document_error() -> CorpusError:
    """Why one document is not enough."""
    return CorpusError(
        "the corpus holds 1 document with text; next-sentence pairs need 2 or more, as the random next comes from "
        "another document. Prepare more documents (the 2018 format has a blank line between two), or pre-train with "
        "objective 'mlm'."
    )


def _uniforms(rng: np.random.Generator) -> Callable[[], float]:
    """Uniform numbers in [0, 1) one by one; the generator is asked for many at a time."""
    return chain.from_iterable(rng.random(DRAWS).tolist() for _ in repeat(None)).__next__


def _table(shard_index: int, layout: _Layout, rows: list[tuple[int, ...]], *, pairs: bool) -> InstanceTable:
    numbers = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=8 * len(rows)).reshape(-1, 8)
    a_start, a_end, b_shard, b_start, b_end, is_next, sentences, short = (column.copy() for column in numbers.T)
    return InstanceTable(
        shard=shard_index,
        pairs=pairs,
        a_start=a_start,
        a_end=a_end,
        b_shard=b_shard,
        b_start=b_start,
        b_end=b_end,
        is_next=is_next.astype(bool),
        sentences=sentences,
        short=short.astype(bool),
        documents=len(layout.documents) - 1,
        one_sentence_documents=int((np.diff(layout.documents) == 1).sum()),
    )


def _truncate(table: InstanceTable, most: int, rng: np.random.Generator) -> None:
    """Move the ends of A and B in place until they fit, as if the longer one (B at a tie) lost a token at a time.

    2018 throws a coin for each token whether it falls off the front or the back, so the front loses a binomial share.
    """
    a_length = table.a_end - table.a_start
    b_length = table.b_end - table.b_start
    excess = np.maximum(a_length + b_length - most, 0)
    to_equal = np.minimum(excess, np.abs(a_length - b_length))
    after = excess - to_equal  # taken in turns, B first
    for starts, ends, cut in (
        (table.a_start, table.a_end, np.where(a_length > b_length, to_equal, 0) + after // 2),
        (table.b_start, table.b_end, np.where(a_length > b_length, 0, to_equal) + (after - after // 2)),
    ):
        front = rng.binomial(cut, 0.5)
        starts += front
        ends -= cut - front


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
