"""Text as the vocabulary sees it: two named presets, both made of parts that travel in a tokenizer.json.

`bert` is the fast BertTokenizer's normalizer, exactly. Lower-casing there means NFD and the loss of every mark of
category Mn: 한국어 falls apart into jamo, バ becomes ハ. `unicode-safe` cleans, spaces CJK and lower-cases the same
way, but takes marks off Latin, Greek and Cyrillic letters only, and ends in NFC.

Where `bert` differs from tokenization.py of 2018, docs/fidelity.md says so.
"""

import functools
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers

from bertsmith.base.config import from_mapping, nearest, to_mapping
from bertsmith.errors import ConfigError, VocabularyError

PRESETS = ("bert", "unicode-safe")

# Applied after NFD, where all marks of a letter follow it in one run: looking back at one letter is enough.
LETTER_MARKS = r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}])\p{Mn}+"


@dataclass(frozen=True)
class Normalizer:
    r"""A preset and its switches; call it on a text to see what it does.

    >>> print(ascii(Normalizer()("Café 바")), ascii(Normalizer("unicode-safe")("Café 바")))
    'cafe \u1107\u1161' 'cafe \ubc14'
    """

    preset: str = "bert"
    lowercase: bool = True
    strip_accents: bool | None = None  # None: as `lowercase` says; a value that says the same is kept as None
    split_cjk: bool = True  # white space around CJK ideographs
    clean: bool = True  # control, format and private-use characters go; every white space becomes a blank

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            near = nearest(self.preset, PRESETS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"normalizer preset {self.preset!r} is none of {', '.join(PRESETS)}{hint}")
        if self.strip_accents == self.lowercase:
            object.__setattr__(self, "strip_accents", None)

    @property
    def strips_accents(self) -> bool:
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def build(self) -> normalizers.Normalizer:
        """The same in the tokenizers library's parts, which keep every character's place in the original text."""
        bert = functools.partial(
            normalizers.BertNormalizer,
            clean_text=self.clean,
            handle_chinese_chars=self.split_cjk,
            lowercase=self.lowercase,
        )
        if self.preset == "bert":
            return bert(strip_accents=self.strip_accents)
        # Lower-casing comes before NFD: İ has a lower case of two characters, i and a dot, and the dot must still go.
        strip = [normalizers.NFD(), normalizers.Replace(Regex(LETTER_MARKS), "")] if self.strips_accents else []
        return normalizers.Sequence([bert(strip_accents=False), *strip, normalizers.NFC()])

    def __call__(self, text: str) -> str:
        return _built(self).normalize_str(text)

    def to_mapping(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, where: str = "normalizer") -> "Normalizer":
        return from_mapping(cls, mapping, where=where)


def from_tokenizers_json(mapping: Mapping[str, Any] | None, *, where: str = "tokenizer.json") -> Normalizer:
    """The `Normalizer` whose `build()` is described by the "normalizer" part of a tokenizer.json."""
    parts = mapping.get("normalizers") if isinstance(mapping, Mapping) else None
    first = parts[0] if isinstance(parts, list) and parts else mapping
    if isinstance(first, Mapping) and first.get("type") == "BertNormalizer":
        settings: dict[str, Any] = {
            "preset": "bert" if first is mapping else "unicode-safe",
            "lowercase": first.get("lowercase", True),
            "strip_accents": first.get("strip_accents") if first is mapping else len(parts or ()) == 4,
            "split_cjk": first.get("handle_chinese_chars", True),
            "clean": first.get("clean_text", True),
        }
        found = Normalizer.from_mapping(settings, where=f"{where}: normalizer")
        if first is mapping or json.loads(found.build().__getstate__()) == mapping:
            return found
    raise VocabularyError(
        f"{where}: its normalizer is neither BertNormalizer nor the unicode-safe preset written by bertsmith: "
        f"{json.dumps(mapping, ensure_ascii=False)[:200]}. Take the vocabulary alone (vocab.txt) and name a preset."
    )


def first_mark(text: str, start: int) -> int:
    """Where the run of combining marks begins in which `start` lies; `start` itself if it is on another character."""
    probe = start
    while 0 <= probe < len(text) and (_moves(text[probe]) or (probe < start and _vanishes(text[probe]))):
        if _moves(text[probe]):
            start = probe
        probe -= 1
    return start


def last_mark(text: str, end: int, limit: int) -> int:
    """Where the marks end that follow the character before `end`.

    Marks of a combining class above 0 change places in NFC, so they may be tokens of their own and still be part of
    this one; vowel signs and Hangul jamo keep theirs, so the next token's start is the limit.
    """
    for probe in range(end, len(text)):
        character = text[probe]
        if _moves(character) or (probe < limit and _follows(character)):
            end = probe + 1
        elif not _vanishes(character):
            break
    return end


def _moves(character: str) -> bool:
    """Whether it is a mark that NFC may put behind others; U+0F73 has class 0, but falls into two that have not."""
    return unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0


def _follows(character: str) -> bool:
    jamo = "\u1161" <= character <= "\u1175" or "\u11a8" <= character <= "\u11c2"
    return jamo or unicodedata.category(character)[0] == "M"


def _vanishes(character: str) -> bool:
    return character == "\ufffd" or (
        unicodedata.category(character) in ("Cc", "Cf", "Co") and character not in "\t\n\r"
    )


@functools.lru_cache(maxsize=64)
def _built(normalizer: Normalizer) -> normalizers.Normalizer:
    return normalizer.build()
