"""A prepared corpus on disk: token ids end to end, memory-mapped, with the borders of sentences and documents.

    corpus/manifest.json    the whole: tokenizer's fingerprint, vocabulary size, shards, counts, sources; written last
    corpus/tokenizer/       the tokenizer it was made with
    corpus/shard-00000/     manifest.json   magic, version, fingerprint, counts, checksum of each file
                            tokens.bin      uint16 while the vocabulary fits, else uint32; little-endian
                            sentences.idx   uint16: tokens of each sentence (a longer one is cut into several)
                            documents.idx   uint32: sentences of each document
                            word_starts.bin one bit a token, first token in the highest bit of the first byte
Every opening checks magic, version, fingerprint and sizes against counts; `verify` reads everything and its checksums.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base.files import explain_os_error, explained, sha256_of
from bertsmith.errors import ShardError
from bertsmith.text.tokenizer import Tokenizer

MAGIC = "bertsmith shard"
CORPUS_MAGIC = "bertsmith corpus"
VERSION = 1
LONGEST_SENTENCE = 65_535  # tokens; what a uint16 can say
FILES = ("tokens.bin", "sentences.idx", "documents.idx", "word_starts.bin")
PREPARE_AGAIN = "remove the corpus folder and run `bertsmith prepare` again"


class Shard:
    """One shard; `Shard.open(folder)`. `fingerprint` is the tokenizer's, `checksum` stands for the content."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder, self.name, self.manifest = folder, folder.name, manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.documents: int = manifest["documents"]
        self.sentences: int = manifest["sentences"]
        self.checksum = sha256_of("".join(manifest["sha256"][name] for name in FILES).encode())
        self._dtype = np.dtype(f"<u{manifest['token_bytes']}")
        self._tokens: int = manifest["tokens"]

    @classmethod
    def open(cls, folder: str | Path, verify: bool = False) -> "Shard":
        """Raises ShardError, naming the file, where anything is missing, cut short or of another version."""
        folder = Path(folder)
        manifest = _read_manifest(folder / "manifest.json", MAGIC, "this shard was not written whole")
        with _complete(folder / "manifest.json"):
            shard = cls(folder, manifest)
            sizes = _sizes(shard._tokens, shard.sentences, shard.documents, manifest["token_bytes"])
        for name in FILES:
            path = folder / name
            with explained(path):
                found = path.stat().st_size if path.exists() else None
            if found is None:
                raise ShardError(f"{path}: missing; {PREPARE_AGAIN}")
            if found != sizes[name]:
                how = "cut short" if found < sizes[name] else "too long"
                raise ShardError(
                    f"{path}: {how}: {found:,} bytes found, {sizes[name]:,} expected; copy it again, or {PREPARE_AGAIN}"
                )
        if verify:
            shard._verify()
        return shard

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """Token ids, read-only, uint16 or uint32 [tokens]; on the disk until touched."""
        path = self.folder / "tokens.bin"
        with explained(path):
            return np.memmap(path, dtype=self._dtype, mode="r", shape=(self._tokens,))

    @functools.cached_property
    def sentence_starts(self) -> np.ndarray:
        """Where sentences start, int64 [sentences + 1]: token positions; the last is the number of tokens."""
        return self._starts("sentences.idx", "<u2", self._tokens)

    @functools.cached_property
    def document_starts(self) -> np.ndarray:
        """Where documents start, int64 [documents + 1]: sentence indices; the last is the number of sentences."""
        return self._starts("documents.idx", "<u4", self.sentences)

    def word_starts(self, start: int, end: int) -> np.ndarray:
        """Whether each of the tokens start..end begins a word; bool [end - start]."""
        first = start // 8
        bits = np.unpackbits(self._word_bits[first : (end + 7) // 8])
        return bits[start - 8 * first : end - 8 * first].astype(bool)

    @functools.cached_property
    def _word_bits(self) -> np.ndarray:
        path = self.folder / "word_starts.bin"
        with explained(path):
            return np.memmap(path, dtype=np.uint8, mode="r")

    def _starts(self, name: str, dtype: str, total: int) -> np.ndarray:
        path = self.folder / name
        with explained(path):
            lengths = np.fromfile(path, dtype=dtype)
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        if starts[-1] != total or not lengths.all():
            raise ShardError(f"{path}: damaged: the lengths add up to {starts[-1]:,}, not {total:,}; {PREPARE_AGAIN}")
        starts.flags.writeable = False
        return starts

    def _verify(self) -> None:
        for name in FILES:
            path = self.folder / name
            if sha256_of(path) != self.manifest["sha256"][name]:
                raise ShardError(
                    f"{path}: damaged: the content does not match its checksum; copy it again, or {PREPARE_AGAIN}"
                )
        vocabulary_size = self.manifest["vocabulary_size"]
        if int(self.tokens.max()) >= vocabulary_size:
            raise ShardError(
                f"{self.folder / 'tokens.bin'}: an id outside the vocabulary of {vocabulary_size:,} pieces"
            )
        assert len(self.sentence_starts) == self.sentences + 1  # and neither raises
        assert len(self.document_starts) == self.documents + 1


class Corpus:
    """A folder of shards; `Corpus.open(folder)`. `fingerprint` stands for tokenizer and content, wherever it lies."""

    def __init__(self, folder: Path, manifest: dict[str, Any], shards: list[Shard]):
        self.folder, self.manifest, self.shards = folder, manifest, shards
        counts = manifest["counts"]
        self.tokens: int = counts["tokens"]
        self.sentences: int = counts["sentences"]
        self.documents: int = counts["documents"]
        self.tokenizer_folder = folder / "tokenizer"
        self.tokenizer_fingerprint: str = manifest["tokenizer"]
        self.fingerprint = sha256_of("".join([self.tokenizer_fingerprint, *(s.checksum for s in shards)]).encode())

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the corpus was made with; ShardError if another one has taken its place."""
        found = Tokenizer.load(self.tokenizer_folder)
        if found.fingerprint != self.tokenizer_fingerprint:
            raise ShardError(
                f"{self.tokenizer_folder}: not the tokenizer this corpus was made with (fingerprint "
                f"{found.fingerprint[:12]}, not {self.tokenizer_fingerprint[:12]}); {PREPARE_AGAIN}"
            )
        return found

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> "Corpus":
        """Raises ShardError, naming the file and the remedy, where the folder is not a whole corpus.

        Sizes and counts are always checked; `verify` reads all shards and compares checksums.
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ShardError(f"{folder}: is a file; a corpus was expected, the folder that `bertsmith prepare` makes")
        if not folder.is_dir():
            raise ShardError(f"{folder}: no such folder; make a corpus with `bertsmith prepare TEXT... --out {folder}`")
        path = folder / "manifest.json"
        manifest = _read_manifest(path, CORPUS_MAGIC, "no corpus here, or one that is not finished")
        shards = []
        with _complete(path):
            for entry in manifest["shards"]:
                shard = Shard.open(folder / entry["name"], verify=verify)
                if shard.fingerprint != manifest["tokenizer"]:
                    raise ShardError(
                        f"{shard.folder / 'manifest.json'}: made with another tokenizer ({shard.fingerprint[:12]}) "
                        f"than the corpus ({manifest['tokenizer'][:12]}); {PREPARE_AGAIN}"
                    )
                if shard.checksum != entry["checksum"]:
                    raise ShardError(f"{shard.folder}: not the shard this corpus was made with; {PREPARE_AGAIN}")
                shards.append(shard)
            return cls(folder, manifest, shards)


def write_shard(
    folder: Path,
    *,
    tokens: np.ndarray,
    sentence_lengths: np.ndarray,
    document_lengths: np.ndarray,
    word_starts: np.ndarray,
    fingerprint: str,
    vocabulary_size: int,
    dropped_sentences: int = 0,
    dropped_documents: int = 0,
) -> dict[str, Any]:
    """Fills an existing `folder` with one shard and returns its manifest; renaming it into place is the caller's part.

    Sentence lengths in tokens, none of them 0; document lengths in sentences; dropped: those without a token.
    Sentences of more than 65,535 tokens are cut into several.
    """
    assert len(tokens) == sentence_lengths.sum() == len(word_starts)
    assert len(sentence_lengths) == document_lengths.sum()
    sentence_lengths, document_lengths = _cut_long(sentence_lengths, document_lengths)
    dtype = token_dtype(vocabulary_size)
    content = {
        "tokens.bin": tokens.astype(dtype, copy=False).tobytes(),
        "sentences.idx": sentence_lengths.astype("<u2").tobytes(),
        "documents.idx": document_lengths.astype("<u4").tobytes(),
        "word_starts.bin": np.packbits(word_starts).tobytes(),
    }
    manifest = {
        "magic": MAGIC,
        "version": VERSION,
        "fingerprint": fingerprint,
        "vocabulary_size": vocabulary_size,
        "token_bytes": dtype.itemsize,
        "tokens": len(tokens),
        "sentences": len(sentence_lengths),
        "documents": len(document_lengths),
        "dropped_sentences": dropped_sentences,
        "dropped_documents": dropped_documents,
        "sha256": {name: sha256_of(data) for name, data in content.items()},
    }
    for name, data in content.items():
        _write(folder / name, data)
    _write(folder / "manifest.json", json.dumps(manifest, indent=1).encode())
    return manifest


def _cut_long(sentence_lengths: np.ndarray, document_lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pieces = -(-sentence_lengths // LONGEST_SENTENCE)
    if len(pieces) == 0 or pieces.max() <= 1:
        return sentence_lengths, document_lengths
    cut = np.full(int(pieces.sum()), LONGEST_SENTENCE, dtype=np.int64)
    cut[np.cumsum(pieces) - 1] = sentence_lengths - (pieces - 1) * LONGEST_SENTENCE
    starts = np.concatenate([[0], np.cumsum(document_lengths)[:-1]])
    return cut, np.add.reduceat(pieces, starts)


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """What the ids of such a vocabulary are stored as."""
    return np.dtype("<u2" if vocabulary_size <= 65_535 else "<u4")


def _sizes(tokens: int, sentences: int, documents: int, token_bytes: int) -> dict[str, int]:
    return dict(zip(FILES, (tokens * token_bytes, sentences * 2, documents * 4, -(-tokens // 8)), strict=True))


def _write(path: Path, data: bytes) -> None:
    with explained(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(path: Path, magic: str, missing: str) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ShardError(
            f"{path}: missing: {missing}; run `bertsmith prepare` with --out {path.parent} (again)"
        ) from error
    except OSError as error:
        raise explain_os_error(path, error) from error
    except ValueError as error:
        raise ShardError(f"{path}: damaged: not JSON ({error}); {PREPARE_AGAIN}") from error
    if not isinstance(manifest, dict) or manifest.get("magic") != magic:
        raise ShardError(f"{path}: not a {magic}; {PREPARE_AGAIN}")
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ShardError(
            f"{path}: version {version}, this bertsmith reads up to {VERSION}; "
            f"use the newer bertsmith that wrote it, or {PREPARE_AGAIN}"
        )
    return manifest


@contextlib.contextmanager
def _complete(path: Path) -> Iterator[None]:
    """Turns an entry that the manifest at `path` lacks, or a wrong kind of value, into a ShardError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise ShardError(f"{path}: damaged: an entry is missing or wrong ({error}); {PREPARE_AGAIN}") from error
