"""How well a vocabulary fits a text: pieces per word, unknown rate, longest pieces, coverage by script.

A word is here what stands between white space, so that pieces per word compares vocabularies that split punctuation or
CJK in different ways. A character is unknown when it lies inside an [UNK] token; what normalization removes is not.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bertsmith.text.tokenizer import Encoding, Tokenizer
from bertsmith.text.vocabulary import CONTINUES

BATCH = 1_000_000  # characters tokenized at a time
LONGEST = 20

# First word of a character's Unicode name -> script, for letters; other letters go by that word itself.
SCRIPTS = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana", "MODIFIER": "Latin"}


def vocabulary_report(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, Any]:
    """Figures over `texts` (read once, in small batches); shares are from 0 to 1, None where nothing was counted."""
    characters: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    used: Counter[int] = Counter()
    words = 0
    for batch in _batches(texts):
        for text, encoding in zip(batch, tokenizer.encode_batch(batch, special=False), strict=True):
            words += len(text.split())
            characters.update(script_of(character) for character in text if not character.isspace())
            unknown.update(_unknown_scripts(text, encoding, tokenizer.vocabulary.unk_id))
            used.update(encoding.ids)
    pieces = sum(used.values())
    return {
        "vocabulary": len(tokenizer.vocabulary),
        "words": words,
        "pieces": pieces,
        "pieces_per_word": pieces / words if words else None,
        "unknown": used[tokenizer.vocabulary.unk_id],
        "unknown_rate": used[tokenizer.vocabulary.unk_id] / pieces if pieces else None,
        "pieces_used": len(used),
        "longest_pieces": _longest(tokenizer, used),
        "scripts": {
            script: {"characters": count, "unknown": unknown[script], "coverage": 1 - unknown[script] / count}
            for script, count in characters.most_common()
        },
    }


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in lists of at most BATCH characters; a longer text is cut there, for these are figures and not ids."""
    batch: list[str] = []
    room = BATCH
    for text in texts:
        for start in range(0, len(text), BATCH):
            part = text[start : start + BATCH]
            if len(part) > room:
                yield batch
                batch, room = [], BATCH
            batch.append(part)
            room -= len(part)
    if batch:
        yield batch


def show_report(report: dict[str, Any]) -> str:
    """The report as lines for people."""
    lines = [
        f"pieces in the vocabulary  {report['vocabulary']:,} ({report['pieces_used']:,} of them used)",
        f"words by white space      {report['words']:,}",
        f"pieces                    {report['pieces']:,}",
        f"pieces per word           {_figure(report['pieces_per_word'], '.3f')}",
        f"unknown rate              {_figure(report['unknown_rate'], '.4%')} ({report['unknown']:,} pieces)",
        "longest pieces            " + " ".join(entry["piece"] for entry in report["longest_pieces"][:8]),
        "",
        f"{'script':<16}{'characters':>14}{'unknown':>12}{'coverage':>12}",
    ]
    for script, row in report["scripts"].items():
        lines.append(f"{script:<16}{row['characters']:>14,}{row['unknown']:>12,}{row['coverage']:>12.4%}")
    return "\n".join(lines)


@functools.lru_cache(maxsize=65_536)
def script_of(character: str) -> str:
    """Latin, Hangul, Han, ...; Digit, Punctuation, Symbol, Mark or Other for what is no letter. From the Unicode name.

    >>> [script_of(character) for character in "aé한漢ァя7!µ"]
    ['Latin', 'Latin', 'Hangul', 'Han', 'Katakana', 'Cyrillic', 'Digit', 'Punctuation', 'Greek']
    """
    category = unicodedata.category(character)
    if category[0] != "L":
        return {"N": "Digit", "P": "Punctuation", "S": "Symbol", "M": "Mark"}.get(category[0], "Other")
    plain = unicodedata.normalize("NFKC", character)[0]  # a micro sign is a mu, a wide A an A
    word = unicodedata.name(plain, "OTHER").split()[0]
    return SCRIPTS.get(word, word.capitalize())


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _unknown_scripts(text: str, encoding: Encoding, unk_id: int) -> Iterable[str]:
    for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if number == unk_id:
            yield from (script_of(character) for character in text[start:end] if not character.isspace())


def _longest(tokenizer: Tokenizer, used: Counter[int]) -> list[dict[str, Any]]:
    vocabulary = tokenizer.vocabulary
    added = {piece.content for piece in tokenizer.added}
    own = [p for p in vocabulary.pieces if p not in added and not p.startswith("[unused")]
    ranked = sorted(own, key=lambda piece: (-len(piece.removeprefix(CONTINUES)), piece))[:LONGEST]
    return [
        {"piece": p, "length": len(p.removeprefix(CONTINUES)), "count": used[vocabulary.id_of(p) or 0]} for p in ranked
    ]
