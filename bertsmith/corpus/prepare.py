"""Raw text to a corpus folder: one pass in bounded memory, on any number of processes, to the same bytes.

Input files are taken in order: small neighbours together, up to about 8 MB on disk, make a unit, a big file is a unit
of its own. A unit gives one shard for every 24 million characters of text, cut between documents. These borders do not
depend on the workers; where there are more workers than units, several read one file and each takes every n-th part.

While it is being made, the folder holds unfinished/ (settings, what each unit has come to, shards being written). A
shard is renamed into place when it is whole; manifest.json comes last, then unfinished/ goes. After a kill, the same
command takes up what was left: whole shards stay, a unit whose files have changed since is done again.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base.files import (
    as_written,
    check_readable,
    explained,
    folder_lock,
    fresh_folder,
    sha256_of,
    sync_folder,
    write_file,
)
from bertsmith.base.log import Log, Progress
from bertsmith.base.workers import Tell, run_tasks
from bertsmith.corpus.documents import Document, ReadCounts, read_documents
from bertsmith.corpus.sentences import split_sentences
from bertsmith.corpus.shards import CORPUS_MAGIC, VERSION, Corpus, Shard, token_dtype, write_shard
from bertsmith.errors import ConfigError, CorpusError, FileError
from bertsmith.text.tokenizer import Tokenizer

UNIT_BYTES = 8_000_000  # on disk
PART_CHARACTERS = 24_000_000  # about 6 million English tokens
BATCH_CHARACTERS = 500_000  # tokenized at a time
UNREACHABLE = 0.01  # share of a vocabulary; with the right normalizer it is 0, or a handful of pieces
MOST_READERS = 8  # of one file, since each reads all of it


@dataclass(frozen=True)
class _Settings:
    format: str
    field: str
    encoding_errors: str


@dataclass(frozen=True)
class _Unit:
    index: int
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    changed: tuple[int, ...]  # modification times, ns: while unfinished only

    def shard_name(self, part: int) -> str:
        return f"shard-{self.index:05}" + (f"-{part:03}" if part else "")


@dataclass(frozen=True)
class _Task:
    """Parts `first`, `first` + `step`, ... of a unit; every reader of a unit sees the same parts."""

    unit: _Unit
    first: int
    step: int
    out: str
    settings: _Settings
    part_characters: int


def prepare(
    paths: Sequence[str | Path],
    *,
    tokenizer_folder: str | Path,
    out: str | Path,
    workers: int = 1,
    format: str = "auto",
    field: str = "text",
    encoding_errors: str = "strict",
    lowercase: bool | None = None,
    preset: str | None = None,
    log: Log | None = None,
) -> Corpus:
    """Tokenizes text files into the corpus folder `out`; see `read_documents` for formats and encoding errors.

    `lowercase` and `preset` overrule what `tokenizer_folder` says of itself (a bare vocab.txt says nothing).

    Run again after an interruption, it goes on; run again when complete, it says so and changes nothing. A folder made
    from other inputs, settings or another tokenizer is refused. Raises CorpusError, FileError, VocabularyError.
    """
    log, out = log or Log(), Path(out)
    if workers < 1:
        raise ConfigError(f"workers {workers}: 1 or more were expected")
    files = _checked_files(paths)
    tokenizer = Tokenizer.load(tokenizer_folder, lowercase=lowercase, preset=preset)
    _check_reachable(tokenizer, log)
    settings = _Settings(format, field, encoding_errors)
    made_of = {
        "tokenizer": tokenizer.fingerprint,
        "settings": asdict(settings),
        "sources": [Path(f).name for f in files],
    }
    if (out / "manifest.json").exists():
        with as_written(out / "manifest.json", CorpusError, "prepare the text again in another folder"):
            return _complete_already(out, files, made_of, log)
    work = out / "unfinished"
    _check_out(out, work)
    with folder_lock(work):
        _check_same(work / "made-of.json", made_of, out)
        units = _units(files)
        records = _records(out, work, units, log)
        _tokenize(out, work, units, records, settings, tokenizer, workers, log)
        manifest = _manifest(out, files, made_of, [records[unit.index] for unit in units], len(tokenizer.vocabulary))
        if not manifest["counts"]["documents"]:
            with explained(out):
                shutil.rmtree(work)
            raise CorpusError(f"{files[0]}{' and the others' if files[1:] else ''}: no document with text in it")
        with fresh_folder(out / "tokenizer") as folder:
            tokenizer.save(folder)
        write_file(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        with explained(out):
            shutil.rmtree(work)
    _report(manifest["counts"], log)
    return Corpus.open(out)


def _check_reachable(tokenizer: Tokenizer, log: Log) -> None:
    """Warns of a normalizer that is not the vocabulary's: most likely a cased vocab.txt taken as lower-casing."""
    never, normalizer = tokenizer.unreachable_pieces(), tokenizer.normalizer
    told = f"preset {normalizer.preset}, {'lower-casing' if normalizer.lowercase else 'cased'}"
    log.say(f"normalizer: {told}")
    if len(never) > UNREACHABLE * len(tokenizer.vocabulary):
        log.warn(
            f"{len(never):,} of {len(tokenizer.vocabulary):,} pieces, such as {never[len(never) // 2]!r}, can never "
            f"come out of the normalizer ({told}); is the vocabulary cased (--cased), or for --preset unicode-safe?"
        )


def _checked_files(paths: Sequence[str | Path]) -> list[str]:
    if not paths:
        raise CorpusError("no input file was given")
    files = [str(path) for path in paths]
    for file in files:
        check_readable(file)
    seen: set[str] = set()
    for file in files:
        real = os.path.realpath(file)
        if real in seen:
            raise CorpusError(f"{file}: given twice; give each input file once")
        seen.add(real)
    return files


def _check_out(out: Path, work: Path) -> None:
    with explained(out):
        if out.exists() and not out.is_dir():
            raise FileError(f"{out}: is a file; a folder for the corpus was expected")
        if out.exists() and not work.is_dir() and any(out.iterdir()):
            raise FileError(f"{out}: the folder holds something that is not a corpus; choose an empty or new one")


def _complete_already(out: Path, files: list[str], made_of: dict[str, Any], log: Log) -> Corpus:
    corpus = Corpus.open(out)
    found = {key: corpus.manifest[key] for key in ("tokenizer", "settings")}
    sources = corpus.manifest["sources"]
    difference = _difference({**found, "sources": [source["name"] for source in sources]}, made_of)
    if difference is None:
        for file, source in zip(files, sources, strict=True):
            if os.path.getsize(file) != source["size"] or sha256_of(Path(file)) != source["sha256"]:
                difference = f"{file} has changed since"
                break
    if difference is not None:
        raise CorpusError(
            f"{out}: holds a corpus made from something else: {difference}; choose another folder or remove this one"
        )
    shutil.rmtree(out / "unfinished", ignore_errors=True)  # left by a kill between manifest and clean-up
    log.say(f"{out}: already complete, {corpus.tokens:,} tokens of {corpus.documents:,} documents")
    return corpus


def _check_same(path: Path, made_of: dict[str, Any], out: Path) -> None:
    if not path.exists() or not any(out.glob("shard-[0-9]*")):  # nothing is lost, whatever it was to be made of
        write_file(path, json.dumps(made_of))
        return
    with explained(path), as_written(path, CorpusError, "remove the folder and prepare the text again"):
        difference = _difference(json.loads(path.read_text(encoding="utf-8")), made_of)
    if difference is not None:
        raise CorpusError(
            f"{out}: holds an unfinished corpus of something else: {difference}; choose another folder or remove it"
        )


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    if found["tokenizer"] != wanted["tokenizer"]:
        return f"another tokenizer (fingerprint {found['tokenizer'][:12]}, not {wanted['tokenizer'][:12]})"
    for name, value in wanted["settings"].items():
        if found["settings"].get(name) != value:
            return f"{name} {found['settings'].get(name)!r}, not {value!r}"
    if len(found["sources"]) != len(wanted["sources"]):
        return f"{len(found['sources'])} input files, not {len(wanted['sources'])}"
    for before, now in zip(found["sources"], wanted["sources"], strict=True):
        if before != now:
            return f"input file {before}, not {now}, in this place"
    return None


def _units(files: list[str]) -> list[_Unit]:
    units: list[list[tuple[str, int, int]]] = []
    filled = 0
    for file in files:
        with explained(file):
            status = os.stat(file)
        if not units or filled + status.st_size > UNIT_BYTES:
            units.append([])
            filled = 0
        units[-1].append((file, status.st_size, status.st_mtime_ns))
        filled += status.st_size
    return [_Unit(index, *zip(*entries, strict=True)) for index, entries in enumerate(units)]  # type: ignore[arg-type]


def _key(unit: _Unit) -> dict[str, Any]:
    """What a unit is made of, however its paths were written, as JSON gives it back."""
    key: dict[str, Any] = json.loads(json.dumps(asdict(unit)))
    return key | {"files": [os.path.realpath(file) for file in unit.files]}


def _records(out: Path, work: Path, units: list[_Unit], log: Log) -> dict[int, dict[str, Any]]:
    """What finished units have come to; what belongs to none of the units, or to changed files, is removed."""
    records: dict[int, dict[str, Any]] = {}
    current: dict[int, bool] = {}
    for unit in units:
        path, key = work / f"unit-{unit.index:05}.json", _key(unit)
        with explained(path):
            record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        current[unit.index] = record is not None and record["unit"] == key
        if record is None or record["unit"] != key:
            if record is not None:
                log.say(f"{unit.files[0]} or a file beside it: changed since the last run, done again")
            write_file(path, json.dumps({"unit": key}))
        elif "parts" in record:
            records[unit.index] = record
    with explained(out):
        for aside in (*work.glob("*.aside"), *out.glob(".tokenizer.*"), *out.glob(".manifest.json.*")):
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
        for folder in out.glob("shard-[0-9]*"):
            index = folder.name.split("-")[1]
            if index.isdecimal() and not current.get(int(index), False):
                shutil.rmtree(folder)
    if records:
        log.say(f"{out}: going on; {len(records)} of {len(units)} units are finished")
    return records


def _tokenize(
    out: Path,
    work: Path,
    units: list[_Unit],
    records: dict[int, dict[str, Any]],
    settings: _Settings,
    tokenizer: Tokenizer,
    workers: int,
    log: Log,
) -> None:
    """Does what is left and adds it to `records`, on the disk too."""
    left = [unit for unit in units if unit.index not in records]
    tasks = [task for unit in left for task in _tasks(unit, out, settings, workers, len(left))]
    results: dict[int, list[dict[str, Any]]] = {}
    steps = {task.unit.index: task.step for task in tasks}
    total = sum(sum(unit.sizes) for unit in units)
    done = sum(sum(unit.sizes) for unit in units if unit.index in records)
    with Progress(log, total / 1e6, "MB", "prepare", done=done / 1e6) as progress:

        def tell(amount: int) -> None:
            progress.advance(amount / 1e6)

        for index, result in run_tasks(_do_task, tasks, shared=tokenizer, workers=workers, tell=tell):
            unit = tasks[index].unit
            theirs = results.setdefault(unit.index, [])
            theirs.append(result)
            if len(theirs) == steps[unit.index]:
                parts = sorted((part for one in theirs for part in one["parts"]), key=lambda part: part["part"])
                records[unit.index] = {**theirs[0], "parts": parts}
                path = work / f"unit-{unit.index:05}.json"
                write_file(path, json.dumps({"unit": _key(unit), **records[unit.index]}))


def _tasks(unit: _Unit, out: Path, settings: _Settings, workers: int, units: int) -> Iterator[_Task]:
    guess = sum(unit.sizes) * (3 if unit.files[0].endswith(("gz", "zst")) else 1) // PART_CHARACTERS + 1
    step = min(-(-workers // units), guess, MOST_READERS)
    for first in range(step):
        yield _Task(unit, first, step, str(out), settings, PART_CHARACTERS)


def _do_task(task: _Task, tokenizer: Tokenizer, tell: Tell) -> dict[str, Any]:
    """Reads a unit and writes the shards of its parts that are this task's and not there yet."""
    unit, out, counts = task.unit, Path(task.out), ReadCounts()
    parts: list[dict[str, Any]] = []
    told = number = characters = 0
    part = _Part(tokenizer) if _is_due(task, 0) else None

    def close() -> None:
        folder = out / unit.shard_name(number)
        tell(0)  # a worker without its parent ends here, before it touches the folder
        if part is not None:
            part.write(folder)
        if number % task.step == task.first:
            parts.append(_summary(folder, number, part))

    for file in unit.files:
        documents = read_documents(file, counts=counts, **asdict(task.settings))
        for document in documents:
            if characters >= task.part_characters:
                close()
                number, characters = number + 1, 0
                part = _Part(tokenizer) if _is_due(task, number) else None
            characters += sum(map(len, document.paragraphs))
            if part is not None:
                part.add(document)
            share = counts.file_bytes // task.step
            if share - told > 200_000:
                tell(share - told)
                told = share
    close()
    tell(counts.file_bytes // task.step - told)
    return {"parts": parts, "counts": asdict(counts)}


def _is_due(task: _Task, number: int) -> bool:
    return number % task.step == task.first and not (Path(task.out) / task.unit.shard_name(number)).exists()


def _summary(folder: Path, number: int, part: "_Part | None") -> dict[str, Any]:
    if not folder.exists():  # nothing but empty documents
        assert part is not None
        return {"part": number, "name": None, "dropped_sentences": part.sentences, "dropped_documents": part.documents}
    manifest = Shard.open(folder).manifest
    dropped = {key: manifest[key] for key in ("dropped_sentences", "dropped_documents")}
    return {"part": number, "name": folder.name, **dropped}


class _Part:
    """Documents on their way to becoming one shard, tokenized in batches."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.documents = self.sentences = 0
        self._size = len(tokenizer.vocabulary)
        self._batch: list[str] = []
        self._characters = 0
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._word_starts: list[np.ndarray] = []
        self._document_sentences: list[int] = []

    def add(self, document: Document) -> None:
        before = self.sentences
        for paragraph in document.paragraphs:
            sentences = [paragraph] if document.sentences else split_sentences(paragraph)
            self._batch += sentences
            self.sentences += len(sentences)
            self._characters += len(paragraph)
            if self._characters >= BATCH_CHARACTERS:
                self._tokenize()
        self._document_sentences.append(self.sentences - before)
        self.documents += 1

    def _tokenize(self) -> None:
        ids, lengths, word_starts = self.tokenizer.sentence_ids(self._batch)
        self._ids.append(ids.astype(token_dtype(self._size), copy=False))
        self._lengths.append(lengths)
        self._word_starts.append(word_starts)
        self._batch, self._characters = [], 0

    def write(self, folder: Path) -> None:
        """The shard at `folder`, all at once; nothing where no token is left."""
        self._tokenize()
        lengths = np.concatenate(self._lengths)
        document_of = np.repeat(np.arange(self.documents), self._document_sentences)
        kept = lengths > 0
        document_lengths = np.bincount(document_of[kept], minlength=self.documents)
        if not kept.any():
            return
        aside = folder.parent / "unfinished" / f"{folder.name}.{os.getpid()}.aside"
        with explained(folder), _removed_on_failure(aside):
            aside.mkdir()
            write_shard(
                aside,
                tokens=np.concatenate(self._ids),
                sentence_lengths=lengths[kept],
                document_lengths=document_lengths[document_lengths > 0],
                word_starts=np.concatenate(self._word_starts),
                fingerprint=self.tokenizer.fingerprint,
                vocabulary_size=self._size,
                dropped_sentences=int((~kept).sum()),
                dropped_documents=int((document_lengths == 0).sum()),
            )
            sync_folder(aside)
            os.rename(aside, folder)
            sync_folder(folder.parent)


@contextlib.contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _manifest(
    out: Path, files: list[str], made_of: dict[str, Any], records: list[dict[str, Any]], vocabulary_size: int
) -> dict[str, Any]:
    parts = [part for record in records for part in record["parts"]]
    shards = [Shard.open(out / part["name"]) for part in parts if part["name"]]
    sha256 = {file: digest for record in records for file, digest in record["counts"]["sha256"].items()}

    def read(name: str) -> int:
        return sum(record["counts"][name] for record in records)

    counts = {
        "tokens": sum(len(shard.tokens) for shard in shards),
        "sentences": sum(shard.sentences for shard in shards),
        "documents": sum(shard.documents for shard in shards),
        "one_sentence_documents": sum(int((np.diff(shard.document_starts) == 1).sum()) for shard in shards),
        "empty_documents": read("empty_documents"),  # no text
        "dropped_documents": sum(part["dropped_documents"] for part in parts),  # text, but not one token
        "dropped_sentences": sum(part["dropped_sentences"] for part in parts),
        "cut_documents": read("cut_documents"),
        "replaced_bytes": read("replaced_bytes"),
        "bytes": read("bytes"),
    }
    return {
        "magic": CORPUS_MAGIC,
        "version": VERSION,
        "tokenizer": made_of["tokenizer"],
        "vocabulary_size": vocabulary_size,
        "counts": counts,
        "settings": made_of["settings"],
        "shards": [
            {
                "name": shard.name,
                "tokens": len(shard.tokens),
                "sentences": shard.sentences,
                "documents": shard.documents,
                "checksum": shard.checksum,
            }
            for shard in shards
        ],
        "sources": [{"name": Path(f).name, "size": os.path.getsize(f), "sha256": sha256[f]} for f in files],
    }


def _report(counts: dict[str, int], log: Log) -> None:
    log.say(f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens")
    ReadCounts(
        empty_documents=counts["empty_documents"] + counts["dropped_documents"],
        cut_documents=counts["cut_documents"],
        replaced_bytes=counts["replaced_bytes"],
    ).tell(log)
    if counts["documents"] == 1:
        log.warn(
            "one document only: next-sentence pairs need two, as a random next comes from another document (a file of "
            "plain text is one, or what stands between <doc> marks)"
        )
    if 2 * counts["one_sentence_documents"] > counts["documents"]:
        log.warn(
            f"{counts['one_sentence_documents']:,} of {counts['documents']:,} documents have one sentence only; next-"
            "sentence prediction learns little from them (one sentence a line is read with --format lines)"
        )
