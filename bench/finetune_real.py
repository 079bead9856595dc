"""Fine-tunes a pre-trained model folder and random weights of the same shape on real tasks, three seeds each.

    python bench/finetune_real.py --model runs/real_en/run/model --data DATA --work runs/finetune_en
    python bench/finetune_real.py --model runs/real_ko/run/model --data DATA --work runs/finetune_ko --task nsmc

DATA has glue_sst2/, glue_rte/, glue_cola/ (the official splits, scored on dev, since the test labels are not public)
and nsmc_train_subset/ (20,000 rows of one file to train on, 5,000 of the other to score). Of longer tables that many
rows are drawn, always the same. Each side takes the best of three learning rates by seed 0 on a tenth of the training
rows (of at most 5,000), and then all seeds at that rate on all of them; random weights get higher rates, since they
have more to learn. The last epoch counts, so the scored rows choose nothing. What the record has for the same model,
rows and settings is not done again.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from record import RECORDS, write_record

from bertsmith.base.files import sha256_of
from bertsmith.base.log import Log
from bertsmith.base.seeds import stream
from bertsmith.tasks.metrics.labels import METRICS
from bertsmith.tasks.readers.table import Columns, Example, read_table
from bertsmith.train.finetune import FinetuneSettings, finetune

RATES = {"pretrained": (5e-5, 1.5e-4, 5e-4), "random": (1e-4, 3e-4, 1e-3)}
SEARCH_ROWS = 5_000
METRIC = {"sst2": "accuracy", "rte": "accuracy", "cola": "matthews", "nsmc": "accuracy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs; what is finished there is kept")
    parser.add_argument("--task", action="append", choices=[*METRIC], help="repeatable; default sst2, rte, cola")
    parser.add_argument("--name", default="real", help="the record is bench/records/finetune_NAME_TASK.json")
    parser.add_argument("--train-rows", type=int, help="default 10,000, for nsmc 20,000")
    parser.add_argument("--test-rows", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", help="the same rates for both sides instead of the usual")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    for task in options.task or ("sst2", "rte", "cola"):
        run_task(task, options)


def run_task(task: str, options: argparse.Namespace) -> None:
    name = f"finetune_{options.name}_{task}"
    train, test = read_task(task, options.data, options.train_rows, options.test_rows)
    rates = {init: tuple(options.rates or found) for init, found in RATES.items()}
    settings = FinetuneSettings(
        epochs=options.epochs, batch=options.batch, seeds=tuple(range(options.seeds)), keep="last",
        metric=METRIC[task],  # type: ignore[arg-type]
    )  # fmt: skip
    key = {
        "model": sha256_of(options.model / "model.safetensors"),
        "rows": [len(train), len(test)],
        "rates": {init: list(found) for init, found in rates.items()},
        "settings": [settings.epochs, settings.batch, list(settings.seeds), SEARCH_ROWS],
    }
    path = RECORDS / f"{name}.json"
    results: dict[str, Any] = {}
    if path.exists():
        old = json.loads(path.read_text())
        results = old["results"] if old["key"] == key else {}
    for init in ("random", "pretrained"):
        if init in results:
            continue
        run = options.work / f"{task}-{init}"
        first = replace(settings, init=init, search=rates[init], seeds=settings.seeds[:1])  # type: ignore[arg-type]
        found = tune(first, options.model, drawn(train, SEARCH_ROWS), None, run / "rates")
        best = replace(first, search=(), learning_rate=found["learning_rate"], seeds=settings.seeds, dev_share=0.0)
        scores = tune(best, options.model, train, test, run / "seeds")
        results[init] = {
            "learning_rate": scores["learning_rate"],
            "search": found["search"],
            "mean": scores["mean"]["test"],
            "spread": scores["spread"]["test"],
            "seeds": [{metric: seed["test"][metric] for metric in METRICS} for seed in scores["seeds"]],
            "collapsed": scores["collapsed"],
            "seconds": sum(seed["seconds"] for seed in scores["seeds"]),
        }
        results["majority"] = scores["majority"]["test"]
        write_record(name, key=key, task=task, metric=METRIC[task], results=results)
        keep_log(run / "seeds", RECORDS / f"{name}_{init}.log")
    show(task, results)


def tune(
    settings: FinetuneSettings, model: Path, train: list[Example], test: list[Example] | None, run: Path
) -> dict[str, Any]:
    """On `test` what came out is scored; without it, a part of train."""
    return finetune(settings, model=model, train=train, test=test, out=run, log=Log(run), resume=True)


def read_task(task: str, data: Path, train_rows: int | None, test_rows: int) -> tuple[list[Example], list[Example]]:
    """Train and the split that is scored, in GLUE's and NSMC's own layouts."""
    if task == "nsmc":
        train = read_table(data / "nsmc_train_subset" / "krbert_char_dev.tsv")
        test = read_table(data / "nsmc_train_subset" / "krbert_validation.txt", format="tsv")
        return drawn(train, train_rows or 20_000), drawn(test, test_rows)
    folder = data / f"glue_{task}"
    glue = {
        "sst2": (Columns("sentence", None, "label"), ("train.tsv",)),
        # The official training tables of these two lie there in two parts; RTE's second part has no header.
        "cola": (Columns("4", None, "2", header=False), ("train.tsv", "val.tsv")),
        "rte": (Columns("sentence1", "sentence2", "label"), ("train.tsv", "val.tsv")),
    }
    columns, parts = glue[task]
    train: list[Example] = []
    for part in parts:
        bare = Columns("2", "3", "4", header=False) if (task, part) == ("rte", "val.tsv") else columns
        train += read(folder / part, bare)
    return drawn(train, train_rows or 10_000), drawn(read(folder / "dev.tsv", columns), test_rows)


def read(path: Path, found: Columns) -> list[Example]:
    return read_table(path, text=found.text, pair=found.pair, label=found.label, header=found.header)


def drawn(examples: list[Example], most: int) -> list[Example]:
    """At most so many, the same ones every time, in their old order."""
    if len(examples) <= most:
        return examples
    return [examples[index] for index in sorted(stream(0, "bench rows").permutation(len(examples))[:most])]


def keep_log(run: Path, log: Path) -> None:
    """The raw log beside the record: every line but the single steps, paths left out."""
    lines = (run / "run.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] in ("epoch", "finetuned")]
    log.write_text("".join(line + "\n" for line in kept))


def show(task: str, results: dict[str, Any]) -> None:
    print(f"{task}: always the most frequent label: accuracy {results['majority']:.4f}")
    for init in ("random", "pretrained"):
        found = results[init]
        cells = []
        for metric in METRICS:
            spread = found["spread"][metric]
            cells.append(f"{metric} {found['mean'][metric]:.4f}" + ("" if spread is None else f" ± {spread:.4f}"))
        collapsed = f"{len(found['collapsed'])} collapsed"
        print(f"  {init:<11} rate {found['learning_rate']:g}  " + "  ".join([*cells, collapsed]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
