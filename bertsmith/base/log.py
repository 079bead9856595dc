"""What a person sees (stderr) and what a program reads afterwards (run.jsonl in the run's folder)."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bertsmith.base.files import explained, read_text
from bertsmith.errors import FileError


class Log:
    """Lines for people on stderr; records for programs in `run`/run.jsonl, if a run folder is given."""

    def __init__(self, run: Path | None = None, *, quiet: bool = False, screen: IO[str] | None = None):
        self.run, self.quiet = run, quiet
        self._screen = screen
        self._file: IO[str] | None = None
        self._live = 0  # width of the live line now on the terminal

    @property
    def screen(self) -> IO[str]:
        return self._screen or sys.stderr

    def say(self, text: str = "") -> None:
        if not self.quiet:
            self.clear_live()
            print(text, file=self.screen, flush=True)

    def warn(self, text: str) -> None:
        """A warning is shown even when quiet."""
        self.clear_live()
        print(f"warning: {text}", file=self.screen, flush=True)
        self.record("warning", text=text)

    def record(self, kind: str, **values: Any) -> None:
        """One JSON line in run.jsonl: {"kind": ..., "time": unix seconds, ...}; nothing without a run folder."""
        if self.run is None:
            return
        with explained(self.run / "run.jsonl"):
            if self._file is None:
                self.run.mkdir(parents=True, exist_ok=True)
                self._file = open_to_append(self.run / "run.jsonl")
            self._file.write(
                json.dumps({"kind": kind, "time": round(time.time(), 3), **values}, ensure_ascii=False) + "\n"
            )
            self._file.flush()

    def live(self, text: str) -> None:
        """A line that the next one overwrites; on a terminal only."""
        if not self.quiet:
            self.screen.write("\r" + text.ljust(self._live)[:200])
            self.screen.flush()
            self._live = len(text)

    def clear_live(self) -> None:
        if self._live:
            self.screen.write("\r" + " " * min(self._live, 200) + "\r")
            self._live = 0


class Progress:
    """Rate, time left and memory of a long piece of work: `with Progress(log, 120, "steps", "pretrain") as progress`.

    On a terminal a live line every second; otherwise a plain line every ten. Work that ends after `at_most` seconds,
    whatever is done by then, shows that as the time left if it is less.
    """

    def __init__(
        self, log: Log, total: float | None, unit: str, label: str, *,
        done: float = 0, at_most: float = math.inf, begun: float | None = None,
    ):  # fmt: skip
        self.at_most = at_most
        self.log, self.total, self.unit, self.label = log, total, unit, label
        self.done = self._first = done
        self._shown = time.monotonic()
        self._begin = self._shown if begun is None else begun  # by time.monotonic()
        self._terminal = log.screen.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.clear_live()
        if kind is None and self._terminal and self.done > self._first:
            self.log.say(self.line({}))

    def advance(self, amount: float = 1, **shown: str) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self._shown < (1 if self._terminal else 10):
            return
        self._shown = now
        (self.log.live if self._terminal else self.log.say)(self.line(shown))

    def line(self, shown: Mapping[str, str]) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        rate = (self.done - self._first) / seconds
        parts = [
            f"{self.label}  {_count(self.done)}" + (f"/{_count(self.total)}" if self.total else "") + f" {self.unit}"
        ]
        parts += [f"{name} {value}" for name, value in shown.items()]
        parts.append(f"{_count(rate)} {self.unit}/s")
        if self.total and rate > 0:
            parts.append(f"ETA {clock(min((self.total - self.done) / rate, self.at_most - seconds))}")
        parts.append(f"{memory_mib():,.0f} MiB")
        return "  ".join(parts)


def clock(seconds: float) -> str:
    """ "1:02:03" or "2:03"."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def memory_mib() -> float:
    """Resident memory of this process now, MiB; its peak where the system has no /proc."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def open_to_append(path: Path) -> IO[str]:
    """The file open at its end, on a line of its own; it stays open for as long as the caller keeps it."""
    cut_half_line(path)
    return open(path, "a", encoding="utf-8")


def cut_half_line(path: Path) -> None:
    """A run killed while it wrote leaves half a record; it goes, so that every line is a whole one."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a run.jsonl, in order; none if there is no such file. Half a line at its end is passed over."""
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(read_text(path).split("\n")[:-1], 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise FileError(f"{path}:{number}: not a JSON line: {error.msg}") from error
    return records


def _count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.2f}M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
