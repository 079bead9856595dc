"""Labelled or unlabelled texts and pairs from CSV, TSV, JSONL, or plain lines.

- csv: the usual rules (quotes, quoted newlines), strictly: a quote that never closes is refused, not read to the end.
- tsv: a tab separates, and nothing else means anything; GLUE's files have quotes that are just quotes.
- jsonl: one object a line; columns are its keys; a label may be a text, a whole number, true or false.
- lines (.txt): one unlabelled text a line.
Columns are named, or counted from 1 in a table without header. Rows are never dropped in silence: a row with too few or
too many fields, or without its label, is refused with file:line. An empty text is kept (it becomes [CLS] [SEP]).
"""

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.config import nearest
from bertsmith.base.files import check_readable, read_text
from bertsmith.errors import ConfigError, TaskError

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "lines",
}  # by suffix
GUESSES = {
    "text": ("text", "sentence", "document", "sentence1"),
    "pair": ("pair", "sentence2"),
    "label": ("label", "gold_label"),
}


@dataclass(frozen=True)
class Example:
    """One row: a text or a pair of texts, its label if it has one, and where it stood."""

    text: str
    pair: str | None
    label: str | None
    where: str  # "file:line"

    @property
    def item(self) -> str | tuple[str, str]:
        """What the tokenizer and the predictors take."""
        return self.text if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what: names, or numbers from 1 where the table has no header."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    header: bool | None = None  # None: as the model's task says, else there is one
    format: str | None = None  # None: by the file's suffix

    def __str__(self) -> str:
        named = [("text", self.text), ("pair", self.pair), ("label", self.label)]
        return ", ".join(f"{what} from column {column!r}" for what, column in named if column is not None)


def read_table(
    path: str | Path,
    *,
    text: str | int | None = None,
    pair: str | int | None = None,
    label: str | int | None = None,
    header: bool | None = None,
    format: str | None = None,
    labels: Sequence[str] | None = None,
    labelled: bool = True,
) -> list[Example]:
    """Every row of a table, in order.

    Columns that are not given are guessed from the header where that is unambiguous (see `find_columns`). `labels` are
    the names a label may have; others are refused with both lists. `labelled=False` reads no labels at all.
    """
    given = columns(text=text, pair=pair, label=label, header=header, format=format)
    rows = _rows(path, given)
    found = _resolve(path, rows, given, labelled)
    text_key, pair_key, label_key = (_key(rows, column) for column in (found.text, found.pair, found.label))
    assert text_key is not None, "every table has a text column once resolved"
    examples = []
    for number, row in rows.rows:
        where = f"{path}:{number}"
        second = None if pair_key is None else _text(where, row, pair_key)
        examples.append(
            Example(
                _text(where, row, text_key), second, None if label_key is None else _label(where, row, label_key), where
            )
        )
    if not examples:
        raise TaskError(
            f"{path}: no rows"
            + (" after the header" if rows.names and rows.kind != "jsonl" else "")
            + "; at least one was expected"
        )
    if labels is not None and labelled:
        check_labels(examples, labels, path)
    return examples


def columns(
    *,
    text: str | int | None = None,
    pair: str | int | None = None,
    label: str | int | None = None,
    header: bool | None = None,
    format: str | None = None,
) -> Columns:
    """`Columns` from names or numbers."""
    names = (None if column is None else str(column) for column in (text, pair, label))
    if format is not None and format not in FORMATS.values():
        near = nearest(format, set(FORMATS.values()))
        raise ConfigError(
            f"format {format!r} is none of csv, tsv, jsonl, lines" + (f"; did you mean {near!r}?" if near else "")
        )
    return Columns(next(names), next(names), next(names), header=header, format=format)


def find_columns(path: str | Path, given: Columns, *, labelled: bool = True) -> Columns:
    """`given` with what was left open found in the header of the table at `path`, and its format by the suffix.

    Where no text column is given, the text is the only one of text, sentence, document, sentence1 there is, and the
    pair the only one of pair, sentence2; where no label column is given, it is the only one of label, gold_label.
    """
    return _resolve(path, _rows(path, given), given, labelled)


def check_labels(
    examples: Sequence[Example], labels: Sequence[str], path: str | Path, *, known_from: str = "the labels known here"
) -> None:
    """TaskError, with both lists and the first place, if a row has a label outside `labels`."""
    known = set(labels)
    strange = next((example for example in examples if example.label not in known), None)
    if strange is not None:
        found = label_order({str(example.label) for example in examples})
        looks_known = _looks(str(strange.label)) in map(_looks, labels)
        raise TaskError(
            f"{strange.where}: the label {strange.label!r} is none of {known_from}"
            + (", though one looks the same: the two differ in Unicode normalization (NFC, NFD)" if looks_known else "")
            + f".\n  known: {_list(labels)}\n  in {path}: {_list(found)}"
        )


def _looks(label: str) -> str:
    return unicodedata.normalize("NFC", label)


def label_order(labels: set[str]) -> list[str]:
    """Label names in their saved order: as numbers if all are whole numbers, else by code point."""
    if all(label.isascii() and label.lstrip("-").isdigit() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


@dataclass
class _Rows:
    """A table as read: column names (None without a header) and rows with their line numbers."""

    kind: str
    names: list[str] | None
    rows: list[tuple[int, Any]]  # lists of fields, or dicts from JSON


def table_format(path: str | Path, format: str | None = None) -> str:
    """The format given, or the one that the suffix stands for."""
    suffix = Path(path).suffix.lower()
    if format is None and suffix not in FORMATS:
        raise TaskError(
            f"{path}: the suffix {suffix!r} does not say what this is; name the format: csv, tsv, jsonl or lines"
        )
    return format or FORMATS[suffix]


def _rows(path: str | Path, given: Columns) -> _Rows:
    check_readable(path)
    kind = table_format(path, given.format)
    text = read_text(path)
    if not text.strip():
        raise TaskError(f"{path}: the file is empty; a table with at least one row was expected")
    if kind == "jsonl":
        objects = list(_json_rows(path, text))
        return _Rows(kind, list(objects[0][1]), list(objects))
    if kind == "lines":
        return _Rows(kind, None, [(number, [line]) for number, line in enumerate(_lines(text), 1)])
    records: Iterator[tuple[int, list[str]]] = (
        _csv_rows(path, text) if kind == "csv" else enumerate((line.split("\t") for line in _lines(text)), 1)
    )
    table = list(records)
    while table and not any(table[-1][1]) and len(table[-1][1]) <= 1 < len(table[0][1]):
        table.pop()  # empty lines at the end; in a table of one column they are empty texts
    line, first = table[0]
    for number, fields in table:
        if len(fields) != len(first):
            raise TaskError(
                f"{path}:{number}: {_count(fields)}, but line {line} has {_count(first)}; every row needs as many"
                + ("" if any(fields) else " (this line is empty)")
            )
    if given.header is False:
        return _Rows(kind, None, list(table))
    return _Rows(kind, [name.strip() for name in first], list(table[1:]))


def _lines(text: str) -> list[str]:
    # Not splitlines(): texts may hold U+2028, U+0085 and other things that it takes for line ends.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _csv_rows(path: str | Path, text: str) -> Iterator[tuple[int, list[str]]]:
    limit = csv.field_size_limit(len(text) + 1)  # the module's own limit of 131,072 characters refuses long documents
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line, found = 1, []
    try:
        for row in reader:
            found.append((line, row if row else [""]))
            line = reader.line_num + 1
    except csv.Error as error:
        hint = (
            "the quote opened there never closes"
            if "end of data" in str(error)
            else "a quote inside a quoted field is written twice"
        )
        raise TaskError(
            f"{path}:{line}: not CSV: {error}; {hint}. "
            "If quotes mean nothing in this table, it is no CSV: use tabs (format tsv)"
        ) from error
    finally:
        csv.field_size_limit(limit)
    yield from found


def _json_rows(path: str | Path, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TaskError(f"{path}:{number}: not JSON: {error}; one JSON object a line was expected") from error
        if not isinstance(row, dict):
            raise TaskError(
                f"{path}:{number}: a JSON {type(row).__name__}; "
                'an object such as {"text": ..., "label": ...} was expected'
            )
        yield number, row


def _resolve(path: str | Path, rows: _Rows, given: Columns, labelled: bool) -> Columns:
    if rows.kind == "lines" and labelled:
        raise TaskError(f"{path}: plain lines have no labels; for a table with tabs name the format: tsv")
    if rows.names is None:
        return _resolve_numbers(path, rows, given, labelled)
    names, text, pair, label = rows.names, given.text, given.pair, given.label
    if text is None:
        taken = {pair, label}
        text = _guess(path, names, "text", taken, needed=True)
        pair = _guess(path, names, "pair", {text, label}, needed=False) if pair is None else pair
    if labelled and label is None:
        label = _guess(path, names, "label", {text, pair}, needed=True)
    wanted = [
        (column, what)
        for column, what in ((text, "text"), (pair, "pair"), (label if labelled else None, "label"))
        if column is not None
    ]
    for column, what in wanted:
        _check_column(path, rows, column, what)
    _check_distinct(path, wanted)
    return Columns(text, pair, label if labelled else None, header=True, format=rows.kind)


def _resolve_numbers(path: str | Path, rows: _Rows, given: Columns, labelled: bool) -> Columns:
    width = len(rows.rows[0][1])
    text, pair, label = given.text, given.pair, given.label
    if rows.kind == "lines" or (width == 1 and not labelled):
        # The columns of a model's task are those of its training table; in a file of bare texts there is one column.
        text, pair, label = "1", None, None
    if text is None or (labelled and label is None):
        what = "text" if text is None else "label"
        raise TaskError(
            f"{path}: a table without header: say which of its {width} columns is the {what}, counted from 1"
        )
    wanted = [
        (column, what)
        for column, what in ((text, "text"), (pair, "pair"), (label if labelled else None, "label"))
        if column is not None
    ]
    for column, what in wanted:
        if not column.isascii() or not column.isdigit() or not 1 <= int(column) <= width:
            raise TaskError(
                f"{path}: the {what} column is given as {column!r}; "
                f"this table has no header, so a number from 1 to {width} was expected"
            )
    _check_distinct(path, wanted)
    return Columns(text, pair, label if labelled else None, header=False, format=rows.kind)


def _guess(path: str | Path, names: list[str], what: str, taken: set[str | None], *, needed: bool) -> str | None:
    found = [name for name in GUESSES[what] if name in names and name not in taken]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise TaskError(f"{path}: {_list(found)} could all be the {what}; name the column")
    if needed:
        raise TaskError(
            f"{path}: no column is called {' or '.join(GUESSES[what])}; name the {what} column, "
            f"or say that there is no header. Found: {_list(names)}"
        )
    return None


def _check_column(path: str | Path, rows: _Rows, column: str, what: str) -> None:
    assert rows.names is not None
    if column not in rows.names:
        near = nearest(column, rows.names)
        hint = f"; did you mean {near!r}?" if near else "."
        number = " (columns go by number only in a table without header)" if column.isdigit() else ""
        raise TaskError(f"{path}: no column {column!r} for the {what}{number}{hint} Found: {_list(rows.names)}")
    if rows.names.count(column) > 1:
        raise TaskError(
            f"{path}:1: {rows.names.count(column)} columns are called {column!r}; the {what} column needs its own name"
        )


def _check_distinct(path: str | Path, wanted: list[tuple[str, str]]) -> None:
    for index, (column, what) in enumerate(wanted):
        for other, also in wanted[:index]:
            if column == other:
                raise TaskError(f"{path}: column {column!r} is given as {also} and as {what}; they must differ")


def _key(rows: _Rows, column: str | None) -> str | int | None:
    """What a row is indexed with to get at `column`."""
    if column is None or rows.kind == "jsonl":
        return column
    return int(column) - 1 if rows.names is None else rows.names.index(column)


def _text(where: str, row: Any, key: str | int) -> str:
    value = _value(where, row, key)
    if not isinstance(value, str):
        raise TaskError(f"{where}: {key!r} is {value!r} ({type(value).__name__}); a text was expected")
    return value


def _label(where: str, row: Any, key: str | int) -> str:
    value = _value(where, row, key)
    if isinstance(value, bool):
        value = str(value).lower()
    if value is None or (isinstance(value, str) and not value.strip()):
        raise TaskError(f"{where}: this row has no label; every row needs one here")
    if not isinstance(value, (str, int)):
        raise TaskError(
            f"{where}: the label is {value!r} ({type(value).__name__}); a name or a whole number was expected"
        )
    return str(value).strip()


def _value(where: str, row: Any, key: str | int) -> Any:
    if isinstance(row, dict) and key not in row:
        near = nearest(str(key), row)
        raise TaskError(
            f"{where}: no key {key!r}" + (f"; did you mean {near!r}?" if near else ".") + f" Found: {_list(row)}"
        )
    return row[key]


def _count(fields: Sequence[str]) -> str:
    return f"{len(fields)} column" + "s" * (len(fields) != 1)


def _list(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:30])) + (f", and {len(names) - 30} more" if len(names) > 30 else "")
