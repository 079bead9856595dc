"""Text to shards: unpacked MB a second and peak memory, English and Korean, with 1 and 2 workers.

    python bench/prepare.py --data DATA [--repeats 3]

DATA has text_en/train-00 and -01, text_ko/kowiki_AA.tar.gz and vocabs/. Every run is a process of its own, in turns.
Memory is the peak of the parent and of the largest worker. All runs over the same text must give the same bytes.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import RECORDS, write_record

from bertsmith.base.log import Log
from bertsmith.corpus.prepare import prepare
from bertsmith.text.tokenizer import Tokenizer

TEXTS = {
    "text_en": (["text_en/train-00.txt.gz", "text_en/train-01.txt.gz"], "bert-base-uncased_vocab.txt", True),
    "text_ko": (["text_ko/kowiki_AA.tar.gz"], "koelectra_vocab.txt", False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=list(TEXTS), help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure(options.data, options.part, options.workers)))
        return
    runs: dict[str, list[dict[str, Any]]] = {}
    lines: list[str] = []
    for turn in range(options.repeats):
        for part in TEXTS:
            for workers in (1, 2):
                command = [
                    sys.executable,
                    __file__,
                    "--data",
                    str(options.data),
                    "--part",
                    part,
                    "--workers",
                    str(workers),
                ]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                runs.setdefault(f"{part}, {workers} workers", []).append(found)
                lines.append(f"{part} workers={workers} turn={turn}: {json.dumps(found)}")
                print(lines[-1], flush=True)
    for part in TEXTS:
        fingerprints = {run["fingerprint"] for name, found in runs.items() if name.startswith(part) for run in found}
        assert len(fingerprints) == 1, f"{part}: runs differ"
    figures = {name: summary(found) for name, found in runs.items()}
    files = {part: [Path(file).name for file in files] for part, (files, _, _) in TEXTS.items()}
    path = write_record("prepare", n=options.repeats, files=files, figures=figures, log="prepare.log")
    (RECORDS / "prepare.log").write_text("\n".join(lines) + "\n")
    print(json.dumps(figures, indent=1))
    print(path.name)


def measure(data: Path, part: str, workers: int) -> dict[str, Any]:
    files, vocabulary, lowercase = TEXTS[part]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer").mkdir()
        Tokenizer.load(data / "vocabs" / vocabulary, lowercase=lowercase).save(Path(folder) / "tokenizer")
        begin, load = time.perf_counter(), os.getloadavg()[0]
        corpus = prepare(
            [data / file for file in files],
            tokenizer_folder=Path(folder) / "tokenizer",
            out=Path(folder) / "corpus",
            workers=workers,
            log=Log(quiet=True),
        )
        seconds = time.perf_counter() - begin
        size = sum(file.stat().st_size for shard in corpus.shards for file in shard.folder.iterdir())
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        megabytes = corpus.manifest["counts"]["bytes"] / 1e6
        processor = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return {
            "seconds": round(seconds, 2),
            "mb_per_second": round(megabytes / seconds, 3),
            "mb_per_processor_second": round(megabytes / processor, 3),
            "parent_mib": round(usages[0].ru_maxrss / 1024),
            "largest_worker_mib": round(usages[1].ru_maxrss / 1024),
            "tokens": corpus.tokens,
            "disk_to_tokens": round(size / corpus.shards[0].tokens.itemsize / corpus.tokens, 3),
            "load_before": round(load, 1),
            "fingerprint": corpus.fingerprint,
        }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians; the rate with its lowest and highest."""
    rates = [run["mb_per_second"] for run in found]
    names = ("mb_per_second", "mb_per_processor_second", "parent_mib", "largest_worker_mib", "load_before")
    medians = {name: statistics.median(run[name] for run in found) for name in names}
    constant = {name: found[0][name] for name in ("tokens", "disk_to_tokens")}
    return {**medians, "spread": [min(rates), max(rates)], **constant}


if __name__ == "__main__":
    main()
