"""How often each word of a corpus occurs: the first stage of training a vocabulary.

A word is what the WordPiece encoder would split: normalized text cut at white space and around punctuation. Words of
more than 100 characters never reach the pieces (the encoder says [UNK]), so they are left out and only numbered.

Memory is bounded and the result depends on the corpus alone. Each process counts until it holds `limit` distinct
strings, then writes its words, sorted, to a file; the files are merged at the end, so every count is exact whatever the
order of the files, the processes and the moments of spilling. If more than `keep` distinct words come out, the most
frequent stay, the first in code point order among words of equal count. The characters of the words left out still
count for the alphabet.
"""

import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from tokenizers.pre_tokenizers import BertPreTokenizer

from bertsmith.base.files import check_readable, explained
from bertsmith.base.workers import Tell, run_tasks
from bertsmith.errors import ConfigError
from bertsmith.text.normalize import Normalizer
from bertsmith.text.vocabulary import LONGEST_WORD

SPILL_AT = 1_000_000  # distinct strings a process holds, about 250 MB with their words
KEEP = 1_000_000  # distinct words that take part in merging
SLAB = 1 << 20  # characters counted in one go
LONG_CHUNK = 1 << 11  # characters; a million ideographs normalized at once take a gigabyte and three times as long
FAN_IN = 64  # sorted files merged at once

# A text is only ever cut where no normalizer and no pre-tokenizer looks across: at a space, or behind punctuation that
# is followed by something that neither combines nor composes with it.
SAFE_CUT = re.compile(
    r"[ \n\t]|(?<=[!-/:-@\[-`{-~\u3001\u3002\uff0c])(?=[!-~\u3001\u3002\uff0c\u4e00-\u9fff\uac00-\ud7a3])"
)
SAFE_CUT_CJK = re.compile(SAFE_CUT.pattern + r"|(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")  # with split_cjk only

Progress = Callable[[str, int, int], None]  # (stage, done, total)


class Tally(Protocol):
    """What a reader counts while it reads: at least the bytes on disk. `type(tally)()` starts from nothing."""

    file_bytes: int

    def add(self, other: Any) -> None: ...


class Reader(Protocol):
    """The texts of files, one by one; what it reads is counted in `counts`."""

    def __call__(self, paths: Sequence[Path], /, *, counts: Any) -> Iterable[str]: ...


@dataclass(frozen=True)
class WordCounts:
    """The words of a corpus in code point order with their counts, and the characters they are made of."""

    words: list[str] = field(repr=False)
    counts: list[int] = field(repr=False)
    starts: dict[str, int] = field(repr=False)  # character -> how often it is the first of a word
    insides: dict[str, int] = field(repr=False)  # character -> how often it is a later one
    total: int  # words in the corpus, those of more than 100 characters not counted
    distinct: int  # different ones; more than len(words) if only the most frequent were kept
    too_long: int  # words of more than 100 characters


def count_words(
    texts: Iterable[str],
    normalizer: Normalizer,
    *,
    limit: int = SPILL_AT,
    keep: int = KEEP,
    scratch: Path | None = None,
) -> WordCounts:
    """Counts the words of `texts` in this process; `scratch` is the folder for sorted runs (the system's by default).

    >>> count_words(["A rose is a rose."], Normalizer()).words
    ['.', 'a', 'is', 'rose']
    """
    with _scratch_folder(scratch) as folder:
        counter = _WordCounter(normalizer, folder, "run", limit)
        counter.add(texts)
        counter.spill()
        return _gather(counter.runs, counter.too_long, folder, keep)


def count_files(
    paths: Sequence[str | Path],
    normalizer: Normalizer,
    *,
    reader: Reader,
    counts: Tally,
    workers: int = 1,
    limit: int = SPILL_AT,
    keep: int = KEEP,
    scratch: Path | None = None,
    on_progress: Progress | None = None,
) -> WordCounts:
    """Counts the words of files, each read whole by one of `workers` processes; the same as count_words of their texts.

    `reader([path], counts=tally)` yields the texts of a file; with several workers it must be picklable (a function of
    a module, or a functools.partial of one). What it counted in all files is added to `counts`.
    `on_progress("count", bytes_done, bytes)` hears how much has been read, in bytes on disk.
    """
    if workers < 1:
        raise ConfigError(f"{workers} workers: at least 1 is needed")
    sized: list[tuple[Path, int]] = []
    for path in map(Path, paths):
        check_readable(path)
        with explained(path):
            sized.append((path, path.stat().st_size))
    total = sum(size for _, size in sized)
    done = 0

    def tell(amount: int) -> None:
        nonlocal done
        done += amount
        if on_progress is not None:
            on_progress("count", done, total)

    runs: list[Path] = []
    too_long = 0
    with _scratch_folder(scratch) as folder:
        shared = _Shared(normalizer, reader, type(counts), folder, limit)
        tasks = list(enumerate(_shares(sized, workers)))
        for _, counted in run_tasks(_count_share, tasks, shared=shared, workers=workers, tell=tell):
            runs += counted[0]
            too_long += counted[1]
            counts.add(counted[2])
        return _gather(runs, too_long, folder, keep)


@dataclass(frozen=True)
class _Shared:
    """What every process needs to count its share."""

    normalizer: Normalizer
    reader: Reader
    tally: Callable[[], Tally]
    folder: str
    limit: int


def _scratch_folder(scratch: Path | None) -> tempfile.TemporaryDirectory[str]:
    with explained(scratch or tempfile.gettempdir()):
        return tempfile.TemporaryDirectory(prefix="bertsmith-words-", dir=scratch)


class _WordCounter:
    """Counts words into sorted files of at most about `limit` distinct strings each."""

    def __init__(self, normalizer: Normalizer, folder: str | Path, name: str, limit: int):
        self.normalize = normalizer.build().normalize_str
        self.split = BertPreTokenizer().pre_tokenize_str
        self.safe_cut = SAFE_CUT_CJK if normalizer.split_cjk else SAFE_CUT
        self.folder, self.name, self.limit = Path(folder), name, max(1, limit)
        self.chunks: Counter[str] = Counter()  # what stands between spaces, as found
        self.bulk = 0  # characters counted from slabs with hardly a space
        self.runs: list[Path] = []
        self.too_long = 0

    def add(self, texts: Iterable[str]) -> None:
        # Text repeats itself, so its chunks are counted as found and only the distinct ones normalized: twenty times
        # less work than normalizing everything. Exact, because nothing looks across a space, tab or line feed
        # (str.split() would also split at U+001C to U+001F, which BERT's clean-up deletes).
        for slab in _slabs(texts, self.safe_cut):
            chunks = slab.replace("\n", " ").replace("\t", " ").split(" ")
            self.chunks.update(chunks)
            if len(slab) > 64 * len(chunks):
                self.bulk += len(slab)
            if len(self.chunks) >= self.limit or self.bulk > 64 * SLAB:
                self.spill()

    def spill(self) -> None:
        """Writes the words counted so far to one more sorted run: a line "word, tab, count" each."""
        words: dict[str, int] = {}
        for chunk, count in self.chunks.items():
            if len(chunk) > LONGEST_WORD and chunk.isascii() and chunk.isalnum():  # normalizing would not shorten it
                self.too_long += count
                continue
            for part in _cut(chunk, self.safe_cut, LONG_CHUNK) if len(chunk) > LONG_CHUNK else (chunk,):
                for word, _ in self.split(self.normalize(part)):
                    if len(word) <= LONGEST_WORD:
                        words[word] = words.get(word, 0) + count
                    else:
                        self.too_long += count
        self.chunks, self.bulk = Counter(), 0
        if words:
            path = self.folder / f"{self.name}-{len(self.runs)}"
            _write_run(path, ((word, words[word]) for word in sorted(words)))
            self.runs.append(path)


def _slabs(texts: Iterable[str], safe_cut: re.Pattern[str]) -> Iterator[str]:
    """The texts joined into pieces of one to two million characters, cut where nothing looks across."""
    held: list[str] = []
    length = 0
    for text in texts:
        held.append(text)
        length += len(text) + 1
        if length >= SLAB:
            yield from _cut("\n".join(held), safe_cut, SLAB)
            held, length = [], 0
    yield from _cut("\n".join(held), safe_cut, SLAB)


def _cut(text: str, safe_cut: re.Pattern[str], size: int) -> Iterator[str]:
    """`text` in pieces of `size` to twice as many characters, longer only where there is no safe place to cut."""
    start = 0
    while len(text) - start > 2 * size:
        cut = safe_cut.search(text, start + size)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _shares(sized: list[tuple[Path, int]], workers: int) -> list[list[tuple[Path, int]]]:
    """The files dealt out, the largest first, each to the worker with the fewest bytes so far; no empty share."""
    loads = [(0, number) for number in range(workers)]
    shares: list[list[tuple[Path, int]]] = [[] for _ in range(workers)]
    for path, size in sorted(sized, key=lambda item: -item[1]):
        load, number = heapq.heappop(loads)
        shares[number].append((path, size))
        heapq.heappush(loads, (load + size + 1, number))
    return [share for share in shares if share]


def _count_share(
    task: tuple[int, list[tuple[Path, int]]], shared: _Shared, tell: Tell
) -> tuple[list[Path], int, Tally]:
    """The sorted runs of one share of the files, how many words were too long, and what the reader counted."""
    number, share = task
    counter, tally = _WordCounter(shared.normalizer, shared.folder, f"run-{number}", shared.limit), shared.tally()
    told = 0

    def watched(texts: Iterable[str]) -> Iterator[str]:
        nonlocal told
        for text in texts:
            yield text
            if tally.file_bytes - told > 200_000:
                tell(tally.file_bytes - told)
                told = tally.file_bytes

    for path, _ in share:
        counter.add(watched(shared.reader([path], counts=tally)))
    counter.spill()
    tell(tally.file_bytes - told)
    return counter.runs, counter.too_long, tally


def _gather(runs: list[Path], too_long: int, folder: str | Path, keep: int) -> WordCounts:
    """Merges the sorted runs and keeps the `keep` most frequent words."""
    for number in range(len(runs)):
        if len(runs) <= FAN_IN:
            break
        path = Path(folder) / f"merged-{number}"
        _write_run(path, _merged(runs[:FAN_IN]))
        for run in runs[:FAN_IN]:
            run.unlink()
        runs = [*runs[FAN_IN:], path]
    starts: Counter[str] = Counter()
    insides: Counter[str] = Counter()
    histogram: Counter[int] = Counter()  # count -> how many words have it

    def tallied() -> Iterator[tuple[str, int]]:
        for word, count in _merged(runs):
            histogram[count] += 1
            starts[word[0]] += count
            for character in word[1:]:
                insides[character] += count
            yield word, count

    everything = Path(folder) / "everything"
    _write_run(everything, tallied())
    least, ties = _threshold(histogram, keep)
    words: list[str] = []
    counts: list[int] = []
    for word, count in _read_run(everything):
        if count < least:
            continue
        if count == least:
            if not ties:
                continue
            ties -= 1
        words.append(word)
        counts.append(count)
    return WordCounts(
        words=words,
        counts=counts,
        starts=dict(sorted(starts.items())),
        insides=dict(sorted(insides.items())),
        total=sum(count * words_with_it for count, words_with_it in histogram.items()),
        distinct=sum(histogram.values()),
        too_long=too_long,
    )


def _threshold(histogram: Counter[int], keep: int) -> tuple[int, int]:
    """The lowest count among the `keep` most frequent words, and how many words of that very count are among them."""
    kept = 0
    least, ties = 0, 0
    for count in sorted(histogram, reverse=True):
        if kept >= keep:
            break
        least, ties = count, min(histogram[count], keep - kept)
        kept += histogram[count]
    return least, ties


def _write_run(path: Path, words: Iterable[tuple[str, int]]) -> None:
    with explained(path), open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in words)


def _read_run(path: Path) -> Iterator[tuple[str, int]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            word, _, count = line.rpartition("\t")
            yield word, int(count)


def _merged(runs: Sequence[Path]) -> Iterator[tuple[str, int]]:
    for word, group in groupby(heapq.merge(*map(_read_run, runs)), key=itemgetter(0)):
        yield word, sum(count for _, count in group)
