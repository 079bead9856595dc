"""Trains a WordPiece vocabulary on text_en beside the tokenizers library's trainer: time, memory, and how well it fits.

    python bench/vocab.py --data DATA [--size 30522] [--workers 2] [--repeats 3]

DATA has text_en/. Each training runs in a process of its own, ours and theirs in turns, on all train files, in another
order every time. Both vocabularies encode heldout.txt.gz with the same normalizer and WordPiece encoder; fewer pieces a
word is better. The memory of ours is an upper bound: the parent's peak and, times the workers, the largest worker's.
"""

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import RECORDS, write_record
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from bertsmith.corpus.documents import ReadCounts, read_texts
from bertsmith.text.normalize import Normalizer
from bertsmith.text.vocabulary import SPECIAL_PIECES
from bertsmith.text.word_counts import count_files
from bertsmith.text.wordpiece import train_wordpiece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", type=int, default=30_522)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(train(options)))
        return
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    log: list[str] = []
    for turn in range(options.repeats):
        for part, found in runs.items():
            run = in_a_process(part, turn, options)
            found.append(run)
            shown = {name: value for name, value in run.items() if name != "pieces"}
            log.append(f"{part} {turn}: {json.dumps(shown)}")
            print(log[-1], flush=True)
    figures = {part: summary(found, options.data / "text_en" / "heldout.txt.gz") for part, found in runs.items()}
    excess = figures["ours"]["pieces_per_word"] / figures["theirs"]["pieces_per_word"] - 1
    path = write_record(
        "vocab", size=options.size, workers=options.workers, n=options.repeats,
        train=[path.name for path in train_files(options)], heldout="heldout.txt.gz",
        **figures, pieces_per_word_excess=excess,
    )  # fmt: skip
    log += [f"{part}: {json.dumps(values)}" for part, values in figures.items()]
    log.append(f"pieces per word, ours over theirs: {excess:+.3%}")
    (RECORDS / "vocab.log").write_text("\n".join(log) + "\n")
    print("\n".join(log[-3:]), path.name, sep="\n")


def train_files(options: argparse.Namespace) -> list[Path]:
    return sorted((options.data / "text_en").glob("train-*.txt.gz"))


def in_a_process(part: str, turn: int, options: argparse.Namespace) -> dict[str, Any]:
    settings = {"part": part, "turn": turn, "data": options.data, "size": options.size, "workers": options.workers}
    arguments = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def train(options: argparse.Namespace) -> dict[str, Any]:
    files = train_files(options)
    files = files[options.turn :] + files[: options.turn]
    start = time.perf_counter()
    if options.part == "ours":
        counts = count_files(files, Normalizer(), reader=read_texts, counts=ReadCounts(), workers=options.workers)
        counted = time.perf_counter() - start
        pieces = list(train_wordpiece(counts, size=options.size).pieces)
        details = {"counting_seconds": round(counted, 1), "words": counts.total, "distinct_words": counts.distinct}
    else:
        tokenizer = encoder()
        trainer = WordPieceTrainer(vocab_size=options.size, special_tokens=list(SPECIAL_PIECES), show_progress=False)
        tokenizer.train_from_iterator(read_texts(files), trainer)
        pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
        details = {}
    seconds = time.perf_counter() - start
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20 * options.workers
    return {
        "seconds": round(seconds, 1),
        "memory_gib": round(own + workers, 3),
        "sha256": hashlib.sha256("\n".join(pieces).encode()).hexdigest(),
        **details,
        "pieces": pieces,
    }


def encoder(pieces: list[str] | None = None) -> Tokenizer:
    model = WordPiece({piece: number for number, piece in enumerate(pieces or [])}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = Normalizer().build(), BertPreTokenizer()
    return tokenizer


def summary(runs: list[dict[str, Any]], heldout: Path) -> dict[str, Any]:
    """Median and spread of time and memory; the fit of the first vocabulary, and how many different ones came out."""
    words = pieces = unknown = 0
    tokenizer = encoder(runs[0]["pieces"])
    for batch in batches(read_texts([heldout])):
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            words += len(set(encoding.word_ids))
            pieces += len(encoding.ids)
            unknown += encoding.tokens.count("[UNK]")
    seconds = [run["seconds"] for run in runs]
    return {
        "pieces_per_word": round(pieces / words, 5),
        "heldout_words": words,
        "unknown": unknown,
        "vocabulary_size": len(runs[0]["pieces"]),
        "different_vocabularies": len({run["sha256"] for run in runs}),
        "seconds_median": statistics.median(seconds),
        "seconds_range": [min(seconds), max(seconds)],
        "memory_gib_most": max(run["memory_gib"] for run in runs),
    }


def batches(texts: Iterator[str]) -> Iterator[list[str]]:
    held: list[str] = []
    for text in texts:
        held.append(text)
        if len(held) == 1_000:
            yield held
            held = []
    yield held


if __name__ == "__main__":
    main()
