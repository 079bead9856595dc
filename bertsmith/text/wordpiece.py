"""A WordPiece vocabulary from word counts, the same bytes for the same corpus every time.

Google never published the trainer of BERT's vocabularies. Like the tokenizers library, this one merges the most
frequent adjacent pair (Sennrich et al., 2016, arXiv:1508.07909) over distinct words, with "##" before every piece that
continues a word; unlike it, ties have a rule, so the outcome depends on nothing but the counts: among pairs of equal
count the one whose left piece comes first in code point order wins, then the one whose right piece does. Where pairs
overlap (the a's in "banaaana"), the leftmost is merged first.

The vocabulary: the special pieces, [unused0] and so on, the alphabet (characters that may start a word, then the ##
forms of those seen inside one, each in code point order), then the merged pieces in the order they were made.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bertsmith.errors import ConfigError, VocabularyError
from bertsmith.text.vocabulary import CONTINUES, SPECIAL_PIECES, Vocabulary
from bertsmith.text.word_counts import WordCounts

SIZE = 30_522  # of bert-base-uncased
STRIDE = 1 << 24  # a pair of symbols is one int, left * STRIDE + right: cheaper to hash than a tuple


def train_wordpiece(
    counts: WordCounts,
    *,
    size: int = SIZE,
    specials: Sequence[str] = SPECIAL_PIECES,
    unused: int = 0,
    limit_alphabet: int | None = None,
    min_count: int = 2,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Vocabulary:
    """A vocabulary of exactly `size` pieces, or a VocabularyError that says which size is possible.

    A pair that occurs fewer than `min_count` times is never merged. `limit_alphabet` keeps only the most frequent
    characters (the first in code point order among equals); words with any other character become [UNK] when encoded,
    so they take no part in merging. `on_progress("merge", pieces, size)` is called now and then.

    >>> from bertsmith.text.normalize import Normalizer
    >>> from bertsmith.text.word_counts import count_words
    >>> train_wordpiece(count_words(["low lower lowest"], Normalizer()), size=20).pieces[-2:]
    ('##ow', 'low')
    """
    if not counts.words:
        raise VocabularyError("no words in the corpus: a vocabulary cannot be made from empty text")
    for name, value, least in (
        ("unused", unused, 0),
        ("limit_alphabet", limit_alphabet, 1),
        ("min_count", min_count, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{name} {value}: {least} or more was expected")
    alphabet = choose_alphabet(counts, limit_alphabet)
    first = [*specials, *(f"[unused{number}]" for number in range(unused))]
    room = size - len(first)
    if len(alphabet.pieces) > room:
        raise VocabularyError(_too_large(counts, alphabet, size, first))
    merger = _Merger(counts, alphabet, min_count)
    while len(merger.symbols) < room and merger.merge():
        if on_progress is not None and len(merger.symbols) % 256 == 0:
            on_progress("merge", len(first) + len(merger.symbols), size)
    pieces = [*first, *merger.symbols]
    if len(pieces) < size:
        raise VocabularyError(
            f"the corpus is too small for {size:,} pieces: it gives {len(pieces):,} "
            f"({len(first):,} special and unused, {len(alphabet.pieces):,} of the alphabet, "
            f"{len(merger.symbols) - len(alphabet.pieces):,} merged from {len(counts.words):,} distinct words by pairs "
            f"seen at least {min_count:,} times). Ask for --size {len(pieces)} or less, or give more text."
        )
    if on_progress is not None:
        on_progress("merge", size, size)
    return Vocabulary(pieces)


@dataclass(frozen=True)
class Alphabet:
    """The characters a vocabulary can spell, as pieces: those that may start a word, then their forms inside words."""

    characters: frozenset[str]
    pieces: tuple[str, ...]
    left_out: tuple[str, ...]  # characters of the corpus beyond the limit, the most frequent first
    left_out_rate: float  # their share of all characters of the corpus


def choose_alphabet(counts: WordCounts, limit: int | None = None) -> Alphabet:
    """The `limit` most frequent characters (all by default) and the pieces that stand for them.

    Every character may start a word of some other text; only those seen inside a word get a ## form (a comma, or a
    Chinese character, is always a word of its own).
    """
    ranked = _ranked(counts)
    chosen, left_out = ranked[:limit], ranked[len(ranked) if limit is None else limit :]
    occurrences = sum(counts.starts.values()) + sum(counts.insides.values())
    lost = sum(counts.starts.get(character, 0) + counts.insides.get(character, 0) for character in left_out)
    inside = [CONTINUES + character for character in sorted(chosen) if character in counts.insides]
    return Alphabet(
        characters=frozenset(chosen),
        pieces=(*sorted(chosen), *inside),
        left_out=tuple(left_out),
        left_out_rate=lost / max(1, occurrences),
    )


def _ranked(counts: WordCounts) -> list[str]:
    """All characters, the most frequent first."""
    return sorted(
        counts.starts.keys() | counts.insides.keys(),
        key=lambda character: (-counts.starts.get(character, 0) - counts.insides.get(character, 0), character),
    )


def _too_large(counts: WordCounts, alphabet: Alphabet, size: int, first: list[str]) -> str:
    """The message when the alphabet leaves no room, with the numbers that would do."""
    room, fits = size - len(first), 0
    for character in _ranked(counts):
        room -= 1 + (character in counts.insides)
        if room < 0:
            break
        fits += 1
    needed = len(first) + len(alphabet.pieces)
    text = (
        f"{size:,} pieces cannot hold the alphabet: {len(alphabet.characters):,} characters make "
        f"{len(alphabet.pieces):,} pieces (some also with ##), which with {len(first):,} special and unused "
        f"ones are {needed:,}. Ask for --size {needed} or more"
    )
    return text + (f", or keep the most frequent characters only: --limit-alphabet {fits} or less." if fits else ".")


class _Merger:
    """The words as lists of symbols, and the counts of their adjacent pairs, kept up to date merge by merge.

    Every pair that can be merged has an entry (-count, left, right, pair) in the heap whose count is at least its
    present one: an increase pushes a new entry, a decrease is found out when the old entry comes up.
    """

    def __init__(self, counts: WordCounts, alphabet: Alphabet, min_count: int):
        self.symbols = list(alphabet.pieces)
        self.number_of = {piece: number for number, piece in enumerate(self.symbols)}
        self.min_count = min_count
        self.words: list[list[int]] = []
        self.weights: list[int] = []
        self.pairs: dict[int, int] = {}
        self.places: dict[int, list[int]] = {}  # pair -> words that hold or held it, repeats possible
        self._spell(counts, alphabet.characters)
        self.heap: list[tuple[int, str, str, int]] = []
        for pair in self.pairs:
            self._push(pair)

    def _spell(self, counts: WordCounts, characters: frozenset[str]) -> None:
        start_of = {character: self.number_of[character] for character in characters}
        inside_of = {c: self.number_of[CONTINUES + c] for c in characters if CONTINUES + c in self.number_of}
        pairs, places = self.pairs, self.places
        for word, weight in zip(counts.words, counts.counts, strict=True):
            if len(word) < 2 or not characters.issuperset(word):
                continue
            symbols = [start_of[word[0]], *(inside_of[character] for character in word[1:])]
            place = len(self.words)
            self.words.append(symbols)
            self.weights.append(weight)
            for left, right in pairwise(symbols):
                pair = left * STRIDE + right
                if pair in pairs:
                    pairs[pair] += weight
                    places[pair].append(place)
                else:
                    pairs[pair] = weight
                    places[pair] = [place]

    def _push(self, pair: int) -> None:
        count = self.pairs[pair]
        if count >= self.min_count:
            left, right = divmod(pair, STRIDE)
            heapq.heappush(self.heap, (-count, self.symbols[left], self.symbols[right], pair))

    def merge(self) -> bool:
        """Merges the best pair everywhere; False if none is left. Two ways to the same piece make one symbol."""
        while self.heap:
            count, left_piece, right_piece, pair = heapq.heappop(self.heap)
            present = self.pairs.get(pair, 0)
            if present != -count:
                if present < -count and present:  # else a newer entry speaks for it
                    self._push(pair)
                continue
            piece = left_piece + right_piece.removeprefix(CONTINUES)
            new = self.number_of.setdefault(piece, len(self.symbols))
            if new == len(self.symbols):
                self.symbols.append(piece)
            self._replace(pair, new)
            return True
        return False

    def _replace(self, pair: int, new: int) -> None:
        left, right = divmod(pair, STRIDE)
        words, weights, pairs, places = self.words, self.weights, self.pairs, self.places
        grown: set[int] = set()
        for place in set(places.pop(pair)):
            symbols, weight = words[place], weights[place]
            at = -1
            while True:
                try:
                    at = symbols.index(left, at + 1)
                except ValueError:
                    break
                if at + 1 >= len(symbols) or symbols[at + 1] != right:
                    continue
                symbols[at : at + 2] = [new]
                if at > 0:
                    before = symbols[at - 1]
                    pairs[before * STRIDE + left] -= weight
                    neighbour = before * STRIDE + new
                    pairs[neighbour] = pairs.get(neighbour, 0) + weight
                    places.setdefault(neighbour, []).append(place)
                    grown.add(neighbour)
                if at + 1 < len(symbols):
                    after = symbols[at + 1]
                    pairs[right * STRIDE + after] -= weight
                    neighbour = new * STRIDE + after
                    pairs[neighbour] = pairs.get(neighbour, 0) + weight
                    places.setdefault(neighbour, []).append(place)
                    grown.add(neighbour)
        del pairs[pair]
        for neighbour in grown:
            if neighbour in pairs:
                self._push(neighbour)
