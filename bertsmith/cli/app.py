"""The command line: which commands exist, and how each one ends.

Only the file of the command asked for is imported, and torch only inside a command that needs it, so that help
answers at once. Exit codes: 0 done, 1 the input or the settings are wrong (one message, no traceback), 2 usage, 70 a
bug of ours (with its traceback), 130 interrupted. stdout carries results, stderr everything else.
"""

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated

import typer

import bertsmith
from bertsmith.base.files import explain_os_error
from bertsmith.errors import BertsmithError, Interrupted

# Where each command lives (its function has its name), and its line in the list of commands.
COMMANDS = {
    "vocab": ("bertsmith.cli.vocab", "Train a vocabulary on text."),
    "prepare": ("bertsmith.cli.data", "Tokenize text into shards."),
    "pretrain": ("bertsmith.cli.train", "Pre-train an encoder on shards."),
    "finetune": ("bertsmith.cli.train", "Fine-tune a model to label texts."),
    "evaluate": ("bertsmith.cli.answer", "Score a fine-tuned model on a table."),
    "predict": ("bertsmith.cli.answer", "Label texts with a fine-tuned model."),
    "fill": ("bertsmith.cli.answer", "Fill the [MASK]s of a text."),
    "inspect": ("bertsmith.cli.look", "Say what a folder is and whether it fits together."),
    "doctor": ("bertsmith.cli.look", "Show versions and what this machine offers."),
    "demo": ("bertsmith.cli.demo", "The whole road on text that Python carries."),
}

# What an interrupted command leaves behind, where it does not say so itself.
AFTER_INTERRUPT = {
    "vocab": "nothing was written",
    "prepare": "finished shards are kept; the same command goes on from there",
    "pretrain": "the state saved last is kept, if there was one; the same command with --resume goes on from there",
    "finetune": "finished seeds are kept; the same command with --resume does the others",
    "demo": "the same command goes on from what is finished",
}

BUG = "this is a bug in bertsmith, not in your input; please report it with the lines above"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `argv` without the program's name, the process' own by default."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments and arguments[0] in COMMANDS else None
    ending = _Ending(name)
    with ending:
        typer.main.get_command(build(name)).main(arguments, prog_name="bertsmith")
    with _Ending(name) as flush:
        sys.stdout.flush()
    return ending.code or flush.code


def build(name: str | None = None) -> typer.Typer:
    """The application, ready to run the command `name`; the others are only listed, their modules not imported."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,  # rich's help takes longer to draw than the whole command line may
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_program)
    for listed, (module, summary) in COMMANDS.items():
        command = getattr(importlib.import_module(module), listed) if listed == name else _listed
        app.command(listed, short_help=summary, no_args_is_help=listed not in ("doctor", "demo"))(command)
    return app


def _listed() -> None:
    raise AssertionError("main builds the command it runs")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bertsmith {bertsmith.__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """bertsmith: from raw text to an answering BERT.

    In the order of work: vocab, prepare, pretrain, finetune, then evaluate, predict, fill. Each has --help.
    """


class _Ending:
    """A context manager that turns whatever ends its block into an exit code and, at most, one message."""

    def __init__(self, command: str | None):
        self.command = command
        self.code = 0

    def __enter__(self) -> "_Ending":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self.code = self._explain(error)
        return True

    def _explain(self, error: BaseException) -> int:
        if isinstance(error, SystemExit):  # typer has already said what there was to say
            if isinstance(error.__context__, BrokenPipeError):
                return _silence_stdout()
            if error.code == Interrupted.exit_code:  # its translation of KeyboardInterrupt
                return self._interrupted()
            return error.code if isinstance(error.code, int) else 0
        if isinstance(error, KeyboardInterrupt):
            return self._interrupted()
        if isinstance(error, BrokenPipeError):
            return _silence_stdout()
        if isinstance(error, Interrupted):
            _complain(f"interrupted: {error}")
            return Interrupted.exit_code
        if isinstance(error, BertsmithError):
            _complain(f"error: {error}")
            return error.exit_code
        if isinstance(error, OSError):
            _complain(f"error: {explain_os_error(None, error)}")
            return BertsmithError.exit_code
        if isinstance(error, MemoryError) or _no_memory(error):
            _complain("error: out of memory; use a smaller batch, a smaller model or fewer workers")
            return BertsmithError.exit_code
        traceback.print_exception(error)
        _complain(BUG)
        return 70

    def _interrupted(self) -> int:
        _complain(f"interrupted: {AFTER_INTERRUPT.get(self.command or '', 'nothing was changed')}")
        return Interrupted.exit_code


def _no_memory(error: BaseException) -> bool:
    """torch has an error of its own for a GPU's memory, and for a processor's a RuntimeError with a sentence in it."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silence_stdout() -> int:
    """The reader of our results has left (`| head`): that is its right, and no error."""
    with contextlib.suppress(OSError, ValueError):  # not a real file: nothing will be flushed at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
