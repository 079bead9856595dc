"""A vocabulary: the pieces in the order of their ids, as a vocab.txt lists them, one a line.

Lines end at \\n or \\r\\n and nowhere else: real vocabularies hold U+2028, at which `str.splitlines` would break them.
Empty lines at the end are ignored; a line is otherwise taken as it stands, blanks included.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bertsmith.base.files import read_text, sha256_of, write_file
from bertsmith.errors import VocabularyError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUES = "##"
LONGEST_WORD = 100  # characters; a longer word is [UNK], as in Hugging Face (200 in tokenization.py of 2018)


class Vocabulary:
    """Immutable; refuses a duplicate, an empty piece, a line break inside a piece, and a missing special piece.

    >>> words = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "a", "##b"])
    >>> words.id_of("##b"), words.mask_id, words.replacement_ids.tolist()
    (7, 4, [6, 7])
    """

    def __init__(self, pieces: Sequence[str], *, where: str = "vocabulary", more_special: Sequence[str] = ()):
        """`where` opens every error message; `more_special` are pieces that are special besides the five of BERT."""
        self._pieces, self.more_special = tuple(pieces), tuple(more_special)
        self._ids = _numbered(self._pieces, lambda index: f"{where}: piece {index}", where)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[p] for p in SPECIAL_PIECES)

    def __len__(self) -> int:
        return len(self._pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._pieces == other._pieces

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} pieces, {self.fingerprint[:12]})"

    def __reduce__(self) -> tuple[object, tuple[tuple[str, ...], tuple[str, ...]]]:
        return _rebuild, (self._pieces, self.more_special)

    @property
    def pieces(self) -> tuple[str, ...]:
        return self._pieces

    def id_of(self, piece: str) -> int | None:
        return self._ids.get(piece)

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of [PAD] [UNK] [CLS] [SEP] [MASK] and of further special pieces."""
        return frozenset(self._ids[piece] for piece in (*SPECIAL_PIECES, *self.more_special))

    @functools.cached_property
    def replacement_ids(self) -> np.ndarray:
        """int64 ids a masked token may randomly become: all but the special pieces and [unused...]."""
        keep = [i for i, piece in enumerate(self._pieces) if i not in self.special_ids and not _unused(piece)]
        return np.array(keep, dtype=np.int64)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the pieces in order, in hexadecimal."""
        return sha256_of("\n".join(self._pieces).encode())

    def write(self, path: str | Path) -> None:
        write_file(path, "\n".join(self._pieces) + "\n")


def _rebuild(pieces: Sequence[str], more_special: Sequence[str]) -> Vocabulary:
    return Vocabulary(pieces, more_special=more_special)


def read_vocabulary(path: str | Path) -> Vocabulary:
    """The vocabulary in a vocab.txt; what is wrong with it is refused with file and line."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    _numbered(lines, lambda index: f"{path}:{index + 1}", str(path))
    return Vocabulary(lines, where=str(path))


def _numbered(pieces: Sequence[str], place: Callable[[int], str], where: str) -> dict[str, int]:
    """Piece -> id, or the error; `place` names the place of an index."""
    if not pieces:
        raise VocabularyError(f"{where}: is empty; one piece a line was expected")
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not piece:
            raise VocabularyError(
                f"{place(index)}: is empty; every line before the last piece must hold one, or all ids after it would "
                "shift. Restore the piece that stood there."
            )
        if "\n" in piece or "\r" in piece:
            raise VocabularyError(f"{place(index)}: {piece!r} has a line break inside")
        if piece in ids:
            raise VocabularyError(
                f"{place(index)}: {piece!r} stands already at {place(ids[piece])}; a piece has one id. "
                "Replace the second by an unused name such as [unused0]."
            )
        ids[piece] = index
    missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
    if missing:
        raise VocabularyError(
            f"{where}: {' '.join(missing)} missing among {len(pieces):,} pieces (the first is {pieces[0]!r}); "
            f"a BERT vocabulary holds {' '.join(SPECIAL_PIECES)}, spelled so"
        )
    return ids


def _unused(piece: str) -> bool:
    return piece.startswith("[unused") and piece.endswith("]")
