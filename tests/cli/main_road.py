"""The main road once, on a text of a few hundred lines, as a user would type it; tests look at what it left."""

import contextlib
import io
import random
from dataclasses import dataclass
from pathlib import Path

from bertsmith.cli.app import main

SUBJECTS = ["the cat", "a dog", "my aunt", "the old king", "nobody", "a red bird", "the river", "our train"]
VERBS = ["likes", "sees", "forgets", "follows", "paints", "remembers", "loses", "hides"]
THINGS = ["the warm bread", "a broken clock", "the green hill", "some fresh water", "its own shadow", "a long letter"]


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str


def typed(*words: object) -> Ran:
    """`bertsmith WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Ran(code, out.getvalue(), err.getvalue())


def sentence(rng: random.Random) -> str:
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(THINGS)}."


def write_text(path: Path, documents: int, seed: int) -> Path:
    """Documents between marks, a few sentences in a paragraph."""
    rng = random.Random(seed)
    parts = []
    for number in range(documents):
        paragraphs = [" ".join(sentence(rng).capitalize() for _ in range(4)) for _ in range(3)]
        parts.append(f'<doc id="{number}">\n' + "\n\n".join(paragraphs) + "\n</doc>\n")
    path.write_text("".join(parts))
    return path


def write_table(path: Path, rows: int, seed: int) -> Path:
    """Is it about a living thing? Columns text and label."""
    rng = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        text = sentence(rng)
        lines.append(f"{text},{'alive' if any(word in text for word in ('cat', 'dog', 'aunt', 'king')) else 'thing'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass(frozen=True)
class Road:
    """Where everything lies, and what each command said."""

    text: Path
    table: Path
    vocabulary: Path
    corpus: Path
    run: Path
    tuned: Path
    said: dict[str, Ran]

    @property
    def pretrained(self) -> Path:
        return self.run / "model"

    @property
    def classifier(self) -> Path:
        return self.tuned / "model"


SMALL = ["--set", "train.steps=6", "--set", "train.batch=8", "--set", "train.warmup=2", "--set", "data.length=32"]


def writers(road: Road, out: Path) -> dict[str, list[object]]:
    """Each command that writes, told to write to `out`."""
    return {
        "vocab": ["vocab", road.text, "--out", out, "--size", 150, "--workers", 1],
        "prepare": ["prepare", road.text, "--tokenizer", road.vocabulary, "--out", out, "--workers", 1],
        "pretrain": ["pretrain", "tiny", "--data", road.corpus, "--out", out, *SMALL],
        "finetune": [
            *("finetune", "--train", road.table, "--model", road.pretrained, "--out", out),
            *("--set", "epochs=1", "--set", "max_length=24"),
        ],
        "evaluate": [
            "evaluate",
            "--model",
            road.classifier,
            "--data",
            road.table,
            "--predictions",
            out.with_suffix(".jsonl"),
        ],
        "predict": [
            *("predict", "--model", road.classifier, "--input", road.table, "--output", out.with_suffix(".jsonl")),
        ],
    }


WRITERS = ["vocab", "prepare", "pretrain", "finetune", "evaluate", "predict"]


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
