"""Help, exit codes and endings: what holds for every command."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from main_road import typed

from bertsmith.cli import app, data
from bertsmith.errors import FileError, Interrupted, MissingExtra, UsageError

ROOT = Path(__file__).parents[2]


def test_help_imports_nothing_heavy_and_lists_every_command():
    code = (
        "import sys\nfrom bertsmith.cli.app import main\ncode = main(['--help'])\n"
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'safetensors', 'rich', 'sklearn'}\n"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *shown, last = done.stdout.splitlines()
    assert last == "0 []"
    listed = [line.split()[0] for line in shown[shown.index("Commands:") + 1 :]]
    assert listed == list(app.COMMANDS)


def test_python_m_and_version():
    done = subprocess.run(
        [sys.executable, "-m", "bertsmith", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("bertsmith 0.")
    assert done.stderr == ""


def test_control_c_while_the_command_line_is_still_loading():
    code = (
        "import sys\nfrom bertsmith.__main__ import run\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\nrun()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_explains_every_option(name):
    ran = typed(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    for parameter in typer.main.get_command(app.build(name)).commands[name].params:
        assert parameter.help, f"{name}: {parameter.name} has no help"


def test_the_page_of_commands_is_the_commands_own_help():
    assert (ROOT / "docs" / "cli.md").read_text() == runpy.run_path(str(ROOT / "docs" / "make_cli.py"))["page"]()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vocb"], "Did you mean 'vocab'"),
        (["vocab", "x.txt"], "Missing option '--out'"),
        (["vocab", "x.txt", "--out", "y", "--size", "many"], "--size"),
        (["prepare", "x.txt", "--out", "y", "--tokenizer", "z", "--format", "pdf"], "--format"),
        (["fill", "--model", "x", "--top", "0", "a [MASK]"], "--top"),
        (["fill", "--model", "x", "--frobnicate"], "--frobnicate"),
        (["predict", "--model", "x", "text", "--input", "y.csv"], "choose one"),
    ],
)
def test_a_wrong_command_line_is_exit_code_two(words, said):
    ran = typed(*words)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FileError("a.txt: gone"), 1, "error: a.txt: gone\n"),
        (UsageError("not like that"), 2, "error: not like that\n"),
        (MissingExtra("zstandard", "zstd", "reading .zst"), 1, "pip install 'bertsmith[zstd]'"),
        (Interrupted("runs/a: state saved after step 7; go on with --resume"), 130, "interrupted: runs/a: state saved"),
        (KeyboardInterrupt(), 130, "interrupted: finished shards are kept; the same command goes on from there"),
        (OSError(28, "No space left on device", "out/x.bin"), 1, "error: out/x.bin: the disk is full"),
        (MemoryError(), 1, "error: out of memory"),
        (BrokenPipeError(32, "Broken pipe"), 0, ""),
        (ZeroDivisionError("division by zero"), 70, app.BUG),
    ],
)
def test_every_ending_has_its_exit_code_and_one_message(monkeypatch, error, code, said):
    def ends(texts: list[Path]) -> None:
        raise error

    monkeypatch.setattr(data, "prepare", ends)
    ran = typed("prepare", "x")
    assert ran.code == code
    assert said in ran.err
    assert ("Traceback" in ran.err) == (code == 70)
    assert ran.out == ""


def test_a_closed_pipe_is_quiet(road):
    """`bertsmith inspect ... --json | head -c 1`, with more output than a pipe holds."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", "inspect", str(road.vocabulary), "--json"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    os.close(read)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
