"""Pre-trains `mini` on real text for a fixed time and records held-out loss and accuracy against time.

    python bench/real.py en --data DATA --work runs/real_en [--minutes 60]
    python bench/real.py ko --data DATA --work runs/real_ko [--minutes 30]

DATA has text_en/, text_ko/ and vocabs/. English uses bert-base-uncased's vocabulary, Korean one of its own from the
training text. Every step is the command a user would type; what is already done is not done again, and the
pre-training resumes.
"""

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from record import write_record

RECIPE = "prenorm-muon-mini"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=["en", "ko"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--set", action="append", default=[], help="further settings of the recipe")
    parser.add_argument("--name", help="the record's name; default real_LANGUAGE")
    options = parser.parse_args()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    train, heldout = english(options.data) if options.language == "en" else korean(options.data, work)
    vocabulary = work / "vocabulary"
    if not vocabulary.exists():
        if options.language == "en":
            vocabulary = options.data / "vocabs" / "bert-base-uncased_vocab.txt"
        else:
            bertsmith(
                "vocab", *train, "--out", vocabulary, "--size", 16_000, "--preset", "unicode-safe", "--workers", 2
            )
    bertsmith("prepare", *train, "--tokenizer", vocabulary, "--out", work / "train", "--workers", 2)
    bertsmith("prepare", *heldout, "--tokenizer", vocabulary, "--out", work / "heldout")
    run = work / "run"
    settings = [f"train.minutes={options.minutes}", "train.evaluate_every=200", *options.set]
    if not (run / "model").exists():
        bertsmith(
            "pretrain", options.recipe, "--data", work / "train", "--heldout", work / "heldout",
            "--out", run, "--resume",
            *(word for setting in settings for word in ("--set", setting)),
        )  # fmt: skip
    lines = [json.loads(line) for line in (run / "run.jsonl").read_text().splitlines()]
    curve = [line for line in lines if line["kind"] == "heldout"]
    steps = [line for line in lines if line["kind"] == "step"]
    write_record(
        options.name or f"real_{options.language}",
        minutes=options.minutes, recipe=options.recipe, settings=settings,
        curve=curve, last_step=steps[-1] if steps else None,
    )  # fmt: skip
    for point in curve:
        print(json.dumps(point))


def english(data: Path) -> tuple[list[Path], list[Path]]:
    return sorted((data / "text_en").glob("train-*.txt.gz")), [data / "text_en" / "heldout.txt.gz"]


def korean(data: Path, work: Path) -> tuple[list[Path], list[Path]]:
    """The archive's hundred files; every twentieth is held out."""
    folder = work / "text"
    if not folder.exists():
        with tarfile.open(data / "text_ko" / "kowiki_AA.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    files = sorted(path for path in folder.rglob("wiki_*") if path.is_file())
    return [path for index, path in enumerate(files) if index % 20], [
        path for index, path in enumerate(files) if index % 20 == 0
    ]


def bertsmith(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    print("bertsmith", words[0], flush=True)
    code = subprocess.run([sys.executable, "-m", "bertsmith", *words], check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
