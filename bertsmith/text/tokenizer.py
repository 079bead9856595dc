"""WordPiece encoding of texts, pairs and word lists, with the place of every token in the text given.

The tokenizers library does the work on each text alone; special pieces, truncation and windows are put around it here,
equal to transformers' BertTokenizer (ids, offsets, overflowing windows, decoding), because the library keeps those
settings as state inside the tokenizer.

One difference, in text that is not in NFC and under the preset unicode-safe only: when marks are composed into a
letter, the library's offsets end before them. Here they end behind them, so that text[start:end] is what the token was
made of.
"""

import dataclasses
import functools
import json
import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bertsmith.base.files import sha256_of
from bertsmith.errors import ConfigError, InputError, VocabularyError
from bertsmith.text.normalize import Normalizer, first_mark, last_mark
from bertsmith.text.saved import AddedPiece, Parts, read_parts, write_parts
from bertsmith.text.vocabulary import CONTINUES, LONGEST_WORD, Vocabulary

Result = TypeVar("Result")
TRUNCATIONS = ("longest_first", "first", "second")


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of a text or pair, special ones included; all lists have one entry a token."""

    ids: list[int]
    segments: list[int]  # 0: first text, 1: second
    offsets: list[tuple[int, int]]  # into the text (or the word) the token comes from; (0, 0) for special tokens
    pieces: list[str]
    words: list[int | None]  # index of the word within its text; None for special tokens
    cut: int = 0  # tokens that truncation took away

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Cuts text into the pieces of a vocabulary.

    >>> tokenizer = Tokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "small", "##er"]))
    >>> encoding = tokenizer.encode("Smaller", "small")
    >>> encoding.ids, encoding.segments, encoding.offsets[1:3]
    ([2, 5, 6, 3, 5, 3], [0, 0, 0, 0, 1, 1], [(0, 5), (5, 7)])
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        normalizer: Normalizer | None = None,
        *,
        added: Sequence[AddedPiece] = Parts.added,
    ):
        self.vocabulary = vocabulary
        self.normalizer = Normalizer() if normalizer is None else normalizer
        self.added = tuple(added)
        self._backend = _backend(vocabulary, self.normalizer, self.added)
        self._composes = self.normalizer.preset == "unicode-safe"
        self._taken_whole = {vocabulary.id_of(piece.content) for piece in self.added} - {vocabulary.unk_id}
        self._cleaned = Normalizer(lowercase=False, split_cjk=False, clean=self.normalizer.clean)
        self._cls = _Part([vocabulary.cls_id], [(0, 0)], ["[CLS]"], [None])
        self._sep = _Part([vocabulary.sep_id], [(0, 0)], ["[SEP]"], [None])
        self._starts_word = np.array([not _continues(piece) for piece in vocabulary.pieces])

    @classmethod
    def load(cls, source: str | Path, *, lowercase: bool | None = None, preset: str | None = None) -> "Tokenizer":
        """From a vocab.txt, a tokenizer.json, or a folder with either (ours or Hugging Face's).

        A vocab.txt does not say whether it is cased: it is taken as lower-casing unless `lowercase=False`. Where the
        source does say it, `lowercase` and `preset` overrule it. Truncation and padding kept in a tokenizer.json are
        not taken over. Raises VocabularyError or FileError.
        """
        parts = read_parts(source, lowercase=lowercase, preset=preset)
        return cls(parts.vocabulary, parts.normalizer, added=parts.added)

    def __reduce__(self) -> tuple[object, tuple[Vocabulary, Normalizer, tuple[AddedPiece, ...]]]:
        return _rebuild, (self.vocabulary, self.normalizer, self.added)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which ids a text gets, in hexadecimal."""
        parts = [self.vocabulary.fingerprint, self.normalizer.to_mapping(), list(map(dataclasses.asdict, self.added))]
        return sha256_of(json.dumps(parts, sort_keys=True).encode())

    def unreachable_pieces(self) -> list[str]:
        """WordPiece's own pieces that the normalizer would change, so that no text ever holds them."""
        named = {piece.content for piece in self.added}
        bare = {p: p.removeprefix(CONTINUES) for p in self.vocabulary.pieces if p not in named and "[unused" not in p}
        normalize = self.normalizer.build().normalize_str
        return [piece for piece, text in bare.items() if normalize(text).strip() != text]

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = None,
        truncation: str = "longest_first",
        special: bool = True,
    ) -> Encoding:
        """The tokens of `text`, or of `text` and `pair`, at most `max_length` with special ones.

        `truncation` says which text gives way: "longest_first", "first" or "second"; `Encoding.cut` counts what went.
        Raises InputError where max_length leaves no room.
        """
        sides = [self._part(text)] if pair is None else [self._part(text), self._part(pair)]
        return self._framed(sides, max_length, truncation, special)

    def encode_batch(
        self,
        items: Sequence[str | tuple[str, str]],
        *,
        max_length: int | None = None,
        truncation: str = "longest_first",
        special: bool = True,
    ) -> list[Encoding]:
        """`encode` for many texts and (text, pair) tuples, on all cores."""
        groups = [_texts_of(item, index) for index, item in enumerate(items)]
        flat = list(chain.from_iterable(groups))
        encoded = _told(lambda: self._backend.encode_batch(flat, add_special_tokens=False), flat)
        parts = iter([self._widened(_taken(e), [t]) for e, t in zip(encoded, flat, strict=True)])
        return [self._framed([next(parts) for _ in group], max_length, truncation, special) for group in groups]

    def encode_words(
        self,
        words: Sequence[str],
        pair: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: str = "longest_first",
        special: bool = True,
    ) -> Encoding:
        """Like `encode` for text that is already cut into words: `words` in the result are indices into the lists
        given, and offsets count inside that word."""
        sides = [self._word_part(words)] if pair is None else [self._word_part(words), self._word_part(pair)]
        return self._framed(sides, max_length, truncation, special)

    def windows(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int,
        stride: int,
        truncation: str | None = None,
    ) -> list[Encoding]:
        """A long text in overlapping windows, nothing cut: each repeats the last `stride` tokens of the one before.

        Of a pair the second text is windowed and the first repeated whole (a question and its document), or the other
        way round with truncation="first".
        """
        if truncation not in (None, "first", "second") or (truncation == "second" and pair is None):
            raise ConfigError(f"windows: truncation={truncation!r}; 'first', or with a pair 'second', was expected")
        sides = [self._part(text)] if pair is None else [self._part(text), self._part(pair)]
        moving = 0 if pair is None or truncation == "first" else 1
        specials = len(sides) + 1
        room = max_length - specials - sum(len(side) for i, side in enumerate(sides) if i != moving)
        length = len(sides[moving])
        if not 0 <= stride < max_length - specials or (length > room and stride >= room):
            raise InputError(
                f"stride {stride} cannot work: of max_length {max_length}, {specials} special tokens"
                + (f" and {max_length - specials - room} of the other text" if pair is not None else "")
                + f" leave {max(room, 0)} tokens a window; the stride must be from 0 to less than that"
            )
        windows = []
        for start in range(0, max(length, 1), room - stride if length > room else max(length, 1)):
            part = sides[moving].between(start, start + room if length > room else length)
            windows.append(self._framed([*sides[:moving], part, *sides[moving + 1 :]], None, "longest_first", True))
            if start + room >= length:
                break
        return windows

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`: continuation pieces joined, no blank before punctuation. What normalization lost is lost."""
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < len(self.vocabulary):
                raise InputError(f"id {number} is outside the vocabulary of {len(self.vocabulary):,} pieces")
        return self._backend.decode(numbers, skip_special_tokens=skip_special)

    def sentence_ids(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids (uint32) of all sentences end to end, without special tokens; lengths (int64); where words start (bool).

        Runs in the calling thread only: as fast per core as the library's own threads, and safe to fork around.
        """
        encode = self._backend.encode
        rows = _told(lambda: [encode(sentence, add_special_tokens=False).ids for sentence in sentences], sentences)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=int(lengths.sum()))
        return ids, lengths, self._starts_word[ids]

    def save(self, folder: str | Path, *, max_length: int | None = None) -> None:
        """vocab.txt, tokenizer.json and tokenizer_config.json, from which AutoTokenizer makes the same tokenizer.

        `max_length` becomes model_max_length, the most tokens the model takes.
        """
        folder = Path(folder)
        parts = Parts(self.vocabulary, self.normalizer, self.added)
        write_parts(folder, parts, self._backend.to_str(pretty=True), max_length=max_length)

    def _part(self, text: str) -> "_Part":
        if not isinstance(text, str):
            raise InputError(f"a text was expected, found {type(text).__name__}")
        encoded = _told(lambda: self._backend.encode(text, add_special_tokens=False), [text])
        return self._widened(_taken(encoded), [text])

    def _word_part(self, words: Sequence[str]) -> "_Part":
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise InputError(f"a list of words was expected, found {type(words).__name__} {words!r:.60}")
        words = list(words)
        encoded = _told(lambda: self._backend.encode(words, is_pretokenized=True, add_special_tokens=False), words)
        return self._widened(_taken(encoded), words, by_word=True)

    def _widened(self, part: "_Part", texts: Sequence[str], *, by_word: bool = False) -> "_Part":
        """Moves the edges of tokens over the marks that NFC composed with their characters, or put in another order."""
        if not self._composes or all(map(self._is_composed, texts)):
            return part
        offsets = []
        for index, (start, end) in enumerate(part.offsets):
            if part.ids[index] in self._taken_whole:
                offsets.append((start, end))
                continue
            word = part.words[index]
            text = texts[word if by_word and word is not None else 0]
            last = index + 1 == len(part) or (by_word and part.words[index + 1] != word)
            limit = len(text) if last else part.offsets[index + 1][0]
            offsets.append((first_mark(text, start), last_mark(text, end, limit)))
        return dataclasses.replace(part, offsets=offsets)

    def _is_composed(self, text: str) -> bool:
        """NFC, also after clean-up has taken away what stood between a letter and its marks."""
        if not unicodedata.is_normalized("NFC", text):
            return False
        return text.isprintable() or unicodedata.is_normalized("NFC", self._cleaned(text))

    def _framed(self, sides: list["_Part"], max_length: int | None, truncation: str, special: bool) -> Encoding:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], after truncation."""
        lengths = kept = [len(side) for side in sides]
        if truncation not in TRUNCATIONS:
            raise ConfigError(f"truncation {truncation!r} is none of {', '.join(TRUNCATIONS)}")
        if max_length is not None:
            kept = _kept(lengths, max_length, len(sides) + 1 if special else 0, truncation)
            sides = [side.between(0, length) for side, length in zip(sides, kept, strict=True)]
        row = [(side, segment) for segment, side in enumerate(sides)]
        if special:
            row = [(self._cls, 0), *chain.from_iterable((entry, (self._sep, entry[1])) for entry in row)]
        return Encoding(
            ids=list(chain.from_iterable(part.ids for part, _ in row)),
            segments=list(chain.from_iterable([segment] * len(part) for part, segment in row)),
            offsets=list(chain.from_iterable(part.offsets for part, _ in row)),
            pieces=list(chain.from_iterable(part.pieces for part, _ in row)),
            words=list(chain.from_iterable(part.words for part, _ in row)),
            cut=sum(lengths) - sum(kept),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The tokens of one text, without special ones."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    pieces: list[str]
    words: list[int | None]

    def __len__(self) -> int:
        return len(self.ids)

    def between(self, start: int, stop: int) -> "_Part":
        if start == 0 and stop >= len(self):
            return self
        return _Part(self.ids[start:stop], self.offsets[start:stop], self.pieces[start:stop], self.words[start:stop])


def _taken(encoded: tokenizers.Encoding) -> _Part:
    return _Part(encoded.ids, encoded.offsets, encoded.tokens, encoded.word_ids)


def _kept(lengths: list[int], max_length: int, specials: int, truncation: str) -> list[int]:
    """How many tokens of each text stay."""
    room, total = max_length - specials, sum(lengths)
    if room < 1:
        raise InputError(f"max_length {max_length} leaves no room for text beside {specials} special tokens")
    if truncation == "second" and len(lengths) == 1:
        raise InputError("truncation='second', but there is one text only")
    if total <= room:
        return lengths
    if truncation != "longest_first":
        side = TRUNCATIONS.index(truncation) - 1
        other = total - lengths[side]
        if other >= room:
            raise InputError(
                f"truncation={truncation!r}: the other text alone has {other} tokens, max_length {max_length} leaves "
                f"room for {room}; take a larger max_length or truncation='longest_first'"
            )
        return [room - other if index == side else length for index, length in enumerate(lengths)]
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    # The longer one gives way down to the shorter one's length; from there on both do, and an odd token of room goes
    # to the one that was longer (to the second where they were equal).
    small, large = (short, room - short) if room - short >= short else (room // 2, room - room // 2)
    return [large, small] if lengths[0] > lengths[1] else [small, large]


def _backend(vocabulary: Vocabulary, normalizer: Normalizer, added: Sequence[AddedPiece]) -> tokenizers.Tokenizer:
    outside = {piece.content for piece in added if not piece.in_model}
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces) if piece not in outside}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    backend.normalizer = normalizer.build()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUES)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary.cls_id), ("[SEP]", vocabulary.sep_id)],
    )
    for piece in sorted(added, key=lambda piece: vocabulary.id_of(piece.content) or 0):
        flags = {name: getattr(piece, name) for name in ("normalized", "single_word", "lstrip", "rstrip")}
        token = tokenizers.AddedToken(piece.content, special=piece.special, **flags)
        (backend.add_special_tokens if piece.special else backend.add_tokens)([token])
        expected, found = vocabulary.id_of(piece.content), backend.token_to_id(piece.content)
        if found != expected:
            raise VocabularyError(f"added token {piece.content!r} has id {expected}; {found} was expected")
    return backend


def _rebuild(vocabulary: Vocabulary, normalizer: Normalizer, added: tuple[AddedPiece, ...]) -> Tokenizer:
    return Tokenizer(vocabulary, normalizer, added=added)


def _continues(piece: str) -> bool:
    return piece.startswith(CONTINUES) and len(piece) > len(CONTINUES)


def _texts_of(item: str | tuple[str, str], index: int) -> tuple[str, ...]:
    if isinstance(item, str):
        return (item,)
    if isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(text, str) for text in item):
        return tuple(item)
    raise InputError(f"item {index}: a text or a pair of texts was expected, found {item!r:.80}")


def _told(encode: Callable[[], Result], texts: Sequence[str]) -> Result:
    """Runs `encode`; a text with half of a surrogate pair, which no UTF-8 has, becomes an InputError."""
    try:
        return encode()
    except (UnicodeEncodeError, TypeError) as error:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"text {index}: a text was expected, found {type(text).__name__}") from error
            place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
            if place is not None:
                raise InputError(
                    f"text {index}: half of a surrogate pair ({text[place]!r}) at character {place}; "
                    "decode the text properly, or replace it: text.encode('utf-16', 'surrogatepass').decode('utf-16')"
                ) from error
        raise
