"""Options that several commands share, written once so that they mean the same everywhere; and printing results."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bertsmith.base.log import Log, Progress

TextFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="TEXT",
        help="Text files: plain, .gz, .zst, .tar, .tar.gz.",
        show_default=False,
    ),
]
TextFormat = Annotated[
    Literal["auto", "text", "lines", "jsonl", "doc"],
    typer.Option(
        help="text: paragraphs between blank lines, one document a file; lines: one sentence a line, blank line between"
        " documents; jsonl: one JSON object a line; doc: <doc ...> marks; auto: by name and content.",
    ),
]
TextField = Annotated[str, typer.Option(metavar="NAME", help="Field of a JSONL line that holds the text.")]
EncodingErrors = Annotated[
    Literal["strict", "replace"],
    typer.Option(help="What to do with bytes that are not UTF-8: refuse the file, or replace and count them."),
]
Model = Annotated[Path, typer.Option(metavar="DIR", help="Model folder, ours or Hugging Face's.", show_default=False)]
Changes = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting; may be repeated.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what the run's folder holds.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Processes to work with; 0: one for each processor.", min=0)]
TableFormat = Annotated[
    Literal["csv", "tsv", "jsonl", "lines"] | None,
    typer.Option(help="What the tables are.", show_default="by the file's ending"),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, ...")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr; warnings and errors only.")]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Column with the text: a name, or a number from 1 if --no-header.",
        show_default="text, else the only column that can be it",
    ),
]
PairColumn = Annotated[
    str | None,
    typer.Option("--pair", metavar="COLUMN", help="Column with the second text of a pair.", show_default="none"),
]
LabelColumn = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="Column with the label.", show_default="label"),
]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The file's first line is data, not column names.")]


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """A result on stdout, for a program or for a person."""
    (print_json if as_json else print_table)(result)


def print_json(result: Mapping[str, Any]) -> None:
    """The result for a program: one JSON object on stdout."""
    print(json.dumps(result, ensure_ascii=False, indent=2, default=str))


def print_table(rows: Mapping[str, Any], indent: str = "") -> None:
    """The result for a person: one `name  value` line each, groups indented; what is None is left out."""
    rows = {name: value for name, value in rows.items() if value is not None}
    width = max((len(name) for name, value in rows.items() if not isinstance(value, Mapping)), default=0)
    for name, value in rows.items():
        if isinstance(value, Mapping) and value:
            print(f"{indent}{name}")
            print_table(value, indent + "  ")
        else:
            print(f"{indent}{name:<{width}}  {show_value(value)}")


def show_value(value: Any) -> str:
    """Floats to four digits, counts with thousands marks."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(show_value, value)) or "none"
    return str(value) or "none"


def processes(workers: int) -> int:
    """How many to start: as many as asked for, or one for each processor this process may use."""
    return workers or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


class Stages:
    """Turns calls `advance(stage, done, total)` into one progress line a stage; `labels` gives its unit and name."""

    def __init__(self, log: Log, labels: Mapping[str, tuple[str, str]]):
        self.log, self.labels = log, labels
        self.stage: str | None = None
        self.progress: Progress | None = None
        self.begun = time.monotonic()  # a stage is first heard of when some of it is done

    def advance(self, stage: str, done: int, total: int) -> None:
        if stage != self.stage or self.progress is None:
            unit, label = self.labels.get(stage, ("", stage))
            self.stage, self.progress = stage, Progress(self.log, total, unit, label, begun=self.begun)
        self.progress.advance(done - self.progress.done)
        if done >= total:
            self.log.clear_live()
            self.begun = time.monotonic()
