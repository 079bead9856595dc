"""Writes docs/cli.md from the commands' own --help (`make docs`); a test compares the two."""

import contextlib
import io
from pathlib import Path

import typer

from bertsmith.cli.app import COMMANDS, build

WIDTH = 100  # characters of a line

HEAD = """# Commands

Made from `--help` by docs/make_cli.py (`make docs`); change the commands, not this page.

Exit codes: 0 done; 1 the input or the settings are wrong (one message on stderr, no traceback); 2 the command line
is wrong; 70 a bug in bertsmith (with its traceback); 130 interrupted. Results go to stdout, progress and messages to
stderr.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD, f"```\n{help_of()}```\n"]
    for name in COMMANDS:
        sections.append(f"## {name}\n\n```\n{help_of(name)}```\n")
    return "\n".join(sections)


def help_of(name: str | None = None) -> str:
    """What `bertsmith [name] --help` prints, at a fixed width."""
    shown = io.StringIO()
    arguments = ["--help"] if name is None else [name, "--help"]
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        command = typer.main.get_command(build(name))
        command.main(arguments, prog_name="bertsmith", terminal_width=WIDTH)
    return shown.getvalue()


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")
