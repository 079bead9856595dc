"""Raw text files to documents, in bounded memory: plain text, one sentence a line (2018), JSONL, WikiExtractor.

Each may be packed (see unpacking.py); a file in an archive is a file like any other.
- text: a blank line ends a paragraph. A file is a document unless <doc ...> and </doc> lines mark them (text outside
  them is a document of its own). Where a mark has a title=, it is WikiExtractor's: every line is a paragraph, and the
  first line is dropped where it only repeats the title. Format "doc" insists on marks and takes every line so.
- lines: one sentence a line, a blank line between documents (the 2018 input).
- jsonl: one document a line, its text in a named field.
Memory stays bounded: a paragraph of more than 1,000,000 characters is cut, at a line's or sentence's end or a space if
there is one; a document of more than 16,000,000 is cut into several (counted); a JSONL line of more than 64,000,000
is refused.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.config import nearest
from bertsmith.corpus.unpacking import PACKED_SUFFIXES, ReadCounts, TextSource, text_sources
from bertsmith.errors import CorpusError

__all__ = ["FORMATS", "Document", "ReadCounts", "read_documents", "read_texts"]

FORMATS = ("auto", "text", "lines", "jsonl", "doc")
PARAGRAPH_LIMIT = 1_000_000  # characters
DOCUMENT_LIMIT = 16_000_000  # characters
JSON_LINE_LIMIT = 64_000_000  # characters

_MARK = re.compile(r"^</?doc(?:[ \t][^>\n]*)?>[ \t]*(?:\n|\Z)", re.MULTILINE)
_TITLE = re.compile(r'\btitle="([^\n]*?)"(?=[ \t]+\w+="|[ \t]*>)')  # a title may hold quotes
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"\n(?:[ \t]*\n)+")


@dataclass(frozen=True)
class Document:
    """`sentences`: each paragraph already is one sentence. `source`: the file, in an archive archive/member."""

    paragraphs: tuple[str, ...]
    sentences: bool
    source: str


def read_documents(
    path: str | Path,
    *,
    format: str = "auto",
    field: str = "text",
    encoding_errors: str = "strict",
    counts: ReadCounts | None = None,
) -> Iterator[Document]:
    """The documents of one file in order; empty ones are skipped and counted.

    `format` "auto" takes .jsonl and .ndjson as JSONL (`field` holds the text), all else as "text". Text is UTF-8;
    a broken byte sequence is a CorpusError naming file and offset; with `encoding_errors="replace"` it becomes U+FFFD
    and is counted. A missing, binary, UTF-16, truncated or empty file is one clear CorpusError or FileError.
    """
    if format not in FORMATS:
        close = nearest(format, FORMATS)
        hint = f"did you mean {close!r}?" if close else f"known are {', '.join(FORMATS)}"
        raise CorpusError(f"format {format!r} is not known; {hint}")
    if encoding_errors not in ("strict", "replace"):
        raise CorpusError(f"encoding_errors {encoding_errors!r} is not known; 'strict' or 'replace' was expected")
    counts = counts if counts is not None else ReadCounts()
    return _read(Path(path), format, field, encoding_errors, counts)


def read_texts(
    paths: Iterable[str | Path],
    *,
    format: str = "auto",
    field: str = "text",
    encoding_errors: str = "strict",
    counts: ReadCounts | None = None,
) -> Iterator[str]:
    """The paragraphs of all files, one by one: what a vocabulary is trained on."""
    for path in paths:
        documents = read_documents(path, format=format, field=field, encoding_errors=encoding_errors, counts=counts)
        for document in documents:
            yield from document.paragraphs


def _read(path: Path, format: str, name: str, encoding_errors: str, counts: ReadCounts) -> Iterator[Document]:
    size, marked = 0, False
    for source in text_sources(path, encoding_errors, counts):
        kind = format if format != "auto" else _format_of(source.name)
        collector = _Collector(source.name, kind == "lines", counts)
        if kind == "jsonl":
            yield from _jsonl(source, name, collector)
        elif kind == "lines":
            yield from _lines(source, collector)
        else:
            yield from _text(source, kind == "doc", collector)
        if collector.found == 0 and not collector.marked:
            counts.empty_documents += 1
        size += source.bytes
        marked = marked or collector.marked
    if size == 0:
        raise CorpusError(f"{path}: the file is empty; there is no text in it")
    if format == "doc" and not marked:
        raise CorpusError(f'{path}: no <doc ...> line in it, so it is not a WikiExtractor file; use format "text"')


def _format_of(name: str) -> str:
    bare = name.lower()
    for suffix in PACKED_SUFFIXES:
        bare = bare.removesuffix(suffix)
    return "jsonl" if bare.endswith((".jsonl", ".ndjson")) else "text"


class _Collector:
    """The document being read: grows by paragraphs, is handed over when it ends or passes the limit."""

    def __init__(self, source: str, sentences: bool, counts: ReadCounts):
        self.source, self.sentences, self.counts = source, sentences, counts
        self.found, self.marked = 0, False  # documents handed over, empty ones too; whether there were <doc> marks
        self.is_open = False  # begun by a <doc> mark and nothing handed over since
        self._paragraphs: list[str] = []
        self._characters = 0

    def add(self, paragraph: str) -> Iterator[Document]:
        while len(paragraph) > PARAGRAPH_LIMIT:
            at = _cut(paragraph)
            yield from self.add(paragraph[:at])
            paragraph = paragraph[at:]
        if not self._paragraphs:
            paragraph = paragraph.removeprefix("\ufeff")  # files glued together bring their byte order marks along
        paragraph = paragraph.strip()
        if paragraph:
            self._paragraphs.append(paragraph)
            self._characters += len(paragraph)
            if self._characters >= DOCUMENT_LIMIT:
                self.counts.cut_documents += 1
                yield self._take()

    def end(self) -> Iterator[Document]:
        if self._paragraphs:
            yield self._take()
        elif self.is_open:
            self.skip_empty()
        self.is_open = False

    def skip_empty(self) -> None:
        self.counts.empty_documents += 1
        self.found += 1

    def _take(self) -> Document:
        document = Document(tuple(self._paragraphs), self.sentences, self.source)
        self._paragraphs, self._characters, self.is_open = [], 0, False
        self.counts.documents += 1
        self.found += 1
        return document


def _text(source: TextSource, every_line: bool, collector: _Collector) -> Iterator[Document]:
    """Text with or without <doc> marks; with `every_line`, or after a mark with a title, each line is a paragraph."""
    title: str | None = None
    lines = every_line
    for paragraphs, mark in _between_marks(source):
        for paragraph in paragraphs:
            if not lines:
                yield from collector.add(paragraph.replace("\n", " "))
                continue
            for line in paragraph.split("\n"):
                if title is not None and line.strip():
                    is_title = line.strip() in (title, html.unescape(title))
                    title = None
                    if is_title:
                        continue
                yield from collector.add(line)
        if mark is not None:
            yield from collector.end()
            collector.marked = True
            collector.is_open = not mark.startswith("</")
            found = _TITLE.search(mark) if collector.is_open else None
            title, lines = (found[1].strip() if found else None), every_line or found is not None
    yield from collector.end()


def _between_marks(source: TextSource) -> Iterator[tuple[list[str], str | None]]:
    """Paragraphs (with their line breaks) and the <doc> or </doc> line that follows them, if one does."""
    held = ""  # begins where a paragraph may begin
    for chunk in source.chunks():
        held += chunk
        at = 0
        for match in _MARK.finditer(held):
            if match[0].endswith("\n"):  # otherwise more of the line may come
                yield _BLANK.split(held[at : match.start()]), match[0]
                at = match.end()
        border = held.rfind("\n\n", at) + 2
        if border < at + 2:  # perhaps the blank lines hold spaces
            border = max((blank.end() for blank in _BLANK.finditer(held, at)), default=0)
        if border > at:
            yield _BLANK.split(held[at:border]), None
            at = border
        while len(held) - at > PARAGRAPH_LIMIT:
            border = at + _cut(held[at : at + PARAGRAPH_LIMIT])
            yield _BLANK.split(held[at:border]), None
            at = border
        held = held[at:]
    at = 0
    for match in _MARK.finditer(held):
        yield _BLANK.split(held[at : match.start()]), match[0]
        at = match.end()
    yield _BLANK.split(held[at:]), None


def _cut(text: str) -> int:
    """Where to cut a text that is too long: near the limit, after a line, a sentence or a word if there is one."""
    low, high = PARAGRAPH_LIMIT * 9 // 10, min(len(text), PARAGRAPH_LIMIT)
    for border in ("\n", ". ", "? ", "! ", "。", " "):
        at = text.rfind(border, low, high)
        if at >= 0:
            return at + len(border)
    return high


def _lines(source: TextSource, collector: _Collector) -> Iterator[Document]:
    held = ""
    for chunk in source.chunks():
        lines = (held + chunk).split("\n")
        held = lines.pop()
        for line in lines:
            if not line or line.isspace():
                yield from collector.end()
            else:
                yield from collector.add(line)
        while len(held) > PARAGRAPH_LIMIT:
            at = _cut(held)
            yield from collector.add(held[:at])
            held = held[at:]
    yield from collector.add(held)
    yield from collector.end()


def _jsonl(source: TextSource, name: str, collector: _Collector) -> Iterator[Document]:
    held, number = "", 1
    for chunk in source.chunks():
        lines = (held + chunk).split("\n")
        held = lines.pop()
        for line in lines:
            yield from _json_document(line, f"{source.name}:{number}", name, source, collector)
            number += 1
        if len(held) > JSON_LINE_LIMIT:
            raise CorpusError(
                f"{source.name}:{number}: more than {JSON_LINE_LIMIT:,} characters; expected one object a line"
            )
    yield from _json_document(held, f"{source.name}:{number}", name, source, collector)


def _json_document(line: str, where: str, name: str, source: TextSource, collector: _Collector) -> Iterator[Document]:
    if not line or line.isspace():
        return
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        begins = f"the line begins {line[:60]!r}"
        raise CorpusError(f"{where}: not JSON ({error}); JSONL has one object a line, {begins}") from error
    if not isinstance(record, dict):
        raise CorpusError(f"{where}: a JSON {type(record).__name__}; an object with the field {name!r} was expected")
    if name not in record:
        close = nearest(name, list(record))
        fields = ", ".join(map(repr, list(record)[:8])) or "none"
        hint = f"did you mean --field {close}?" if close else "choose one with --field"
        raise CorpusError(f"{where}: no field {name!r}; the fields are {fields}; {hint}")
    text = record[name]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: field {name!r} holds {type(text).__name__}, not text; choose another with --field")
    if "\\u" in line:
        text = _without_surrogates(text, where, source)
    collector.is_open = True  # so that a text of white space counts as an empty document
    for paragraph in _BLANK.split(text.replace("\r\n", "\n")):
        yield from collector.add(paragraph.replace("\n", " "))
    yield from collector.end()


def _without_surrogates(text: str, where: str, source: TextSource) -> str:
    """JSON can spell half a character (\\ud83d alone), which no UTF-8 file can hold."""
    whole, halves = _SURROGATE.subn("\ufffd", text)
    if halves and not source.replace:
        raise CorpusError(
            f"{where}: half a surrogate pair (\\ud800 to \\udfff) is no character; or --encoding-errors replace"
        )
    source.counts.replaced_bytes += 3 * halves  # as UTF-8 would spell them
    return whole
