"""A full disk and Ctrl-C in the middle of each command."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from main_road import WRITERS, files_in, typed, write_text, writers

import bertsmith.corpus.prepare
import bertsmith.nn.rows
import bertsmith.text.wordpiece
from bertsmith.models.bert import Bert

ROOT = Path(__file__).parents[2]
ROOM = {
    "vocab": 4_096,
    "prepare": 4_096,
    "pretrain": 1_000_000,
    "finetune": 1_000_000,
    "evaluate": 4_096,
    "predict": 4_096,
}

# A disk that is full when some of the files are written already.
DISK = ROOM | {"vocab": 12_288, "prepare": 12_288, "pretrain": 3_000_000}

# In our words; in those of the system where the safetensors library did the writing.
FULL = ("disk is full", "larger than this system allows", "No space left on device", "File too large")


@contextlib.contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """No file of this process grows past `limit` bytes: the write that would fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A tmpfs of `size` bytes at `folder`; where mounting is not allowed, the limit on file sizes instead."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    try:
        with contextlib.nullcontext() if mounted else largest_file(size):
            yield
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("disk", ["limit", pytest.param("tmpfs", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_message_and_leaves_nothing_half_written(road, tmp_path, command, disk):
    folder = tmp_path / "disk"
    with small_disk(folder, DISK[command]) if disk == "tmpfs" else largest_file(ROOM[command]):
        folder.mkdir(exist_ok=True)
        ran = typed(*writers(road, folder / "out")[command])
        left = files_in(folder)
    assert ran.code == 1, ran
    assert any(text in ran.err for text in FULL)
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in ran.err
    assert not [name for name in left if name.endswith((".aside", ".old"))]
    assert not [name for name in left if Path(name).name in ("model", "manifest.json", "out.json", "out.jsonl")]
    assert not [name for name in left if command == "vocab"]


def test_what_was_whole_stays_when_its_successor_does_not_fit(road, tmp_path):
    words = writers(road, tmp_path / "out")["vocab"]
    assert typed(*words).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with largest_file(4_096):
        assert typed(*words).code == 1
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert os.listdir(tmp_path) == ["out"]


def interrupts(function, after):
    """`function`, with a Ctrl-C at the start of its call number `after`."""
    calls = 0

    def wrapped(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == after:
            os.kill(os.getpid(), signal.SIGINT)
        return function(*arguments, **named)

    return wrapped


MIDDLE = {  # command -> where its work is done, and which call is in the middle of it
    "vocab": (bertsmith.text.wordpiece._Merger, "merge", 40),
    "prepare": (bertsmith.corpus.prepare, "split_sentences", 20),
    "pretrain": (Bert, "forward", 3),
    "finetune": (Bert, "forward", 3),
    "evaluate": (Bert, "forward", 1),
    "predict": (Bert, "forward", 1),
}


@pytest.mark.parametrize("command", WRITERS)
def test_control_c_is_exit_code_130_and_leaves_nothing_half_written(road, tmp_path, monkeypatch, command):
    home, name, call = MIDDLE[command]
    with monkeypatch.context() as patch:
        patch.setattr(home, name, interrupts(getattr(home, name), call))
        ran = typed(*writers(road, tmp_path / "out")[command])
    assert ran.code == 130, ran
    assert ran.out == ""
    assert "interrupted: " in ran.err
    assert "Traceback" not in ran.err
    left = files_in(tmp_path)
    assert not [name for name in left if name.endswith((".aside", ".old"))]
    assert not [name for name in left if Path(name).name in ("model", "manifest.json", "out.json", "out.jsonl")]
    assert not [name for name in left if command in ("vocab", "evaluate", "predict")]
    if command in ("pretrain", "finetune"):
        assert "--resume" in ran.err
        again = typed(*writers(road, tmp_path / "out")[command], "--resume")
    else:
        again = typed(*writers(road, tmp_path / "out")[command])
    assert again.code == 0, again.err


def test_control_c_during_fill_and_inspect(road, monkeypatch):
    monkeypatch.setattr(Bert, "forward", interrupts(Bert.forward, 1))
    assert typed("fill", "--model", road.pretrained, "the [MASK]").code == 130
    monkeypatch.setattr("bertsmith.cli.look._tokenizer", interrupts(lambda source: {}, 1))
    ran = typed("inspect", road.vocabulary)
    assert (ran.code, ran.out) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["vocab", "prepare"])
def test_control_c_reaches_every_process_and_none_stays(road, tmp_path, command):
    """As a terminal sends it: to the whole group, workers too, while they work."""
    texts = [write_text(tmp_path / f"{number}.txt", 20_000, number) for number in range(3)]
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    words = [command, *texts, "--out", out, "--workers", "2"]
    words += ["--size", "150"] if command == "vocab" else ["--tokenizer", road.vocabulary]
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun = scratch if command == "vocab" else out / "unfinished"
    while process.poll() is None and not (begun.is_dir() and any(begun.iterdir())):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate()
    assert (process.returncode, printed) == (130, ""), said
    assert said.count("interrupted: ") == 1
    assert "Traceback" not in said
    assert not (out / "manifest.json").exists()
    assert files_in(scratch) == []
    with pytest.raises(ProcessLookupError):
        for _ in range(600):  # the last one of the group ends when it notices that the others have
            os.killpg(process.pid, 0)
            time.sleep(0.1)
