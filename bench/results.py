"""Writes bench/RESULTS.md from the records in bench/records.

`--check` fails where the page is not what the records say.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from record import BENCH, RECORDS

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = results()
    page = BENCH / "RESULTS.md"
    if options.check:
        sys.exit(
            0 if page.read_text() == text else "bench/RESULTS.md is not what the records say: python bench/results.py"
        )
    page.write_text(text)


def results() -> str:
    records = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}
    parts = [
        "# Results\n\n"
        "Made by `python bench/results.py` from the records in bench/records, which hold commands, machines, spreads "
        "and raw logs. Machines here are shared and have two cores: ratios within one run say more than times. "
        "What failed is in [LOG.md](LOG.md)."
    ]
    for prefix, (title, render) in SECTIONS.items():
        found = {name: record for name, record in records.items() if name == prefix or name.startswith(f"{prefix}_")}
        if found:
            parts.append(f"## {title}")
            parts += [f"{render(record)}\n\n{source(record)}" for record in found.values()]
    return "\n\n".join(parts) + "\n"


def source(record: Record) -> str:
    about = record.get("machine", {})
    machine = (
        f"{about.get('cpu', '')} ({', '.join(about.get('units', []))}), "
        f"{about.get('threads')} threads, torch {about.get('torch')}"
    )
    note = f" {record['note']}" if "note" in record else ""
    return f"<sub>`{record['command']}` at {record['commit']}, {record['date']}; {machine}.{note}</sub>"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def tokenizer_parity(record: Record) -> str:
    rows = [
        (one["vocabulary"], f"{one['n']:,}", f"{one['tokens']:,}", one["mismatches"], one["slices_off"])
        for one in record["results"]
    ]
    return table(["vocabulary", "lines", "tokens", "lines with other ids or offsets", "slices off"], rows)


def vocab(record: Record) -> str:
    rows = [
        (name, one["seconds_median"], one["memory_gib_most"], one["pieces_per_word"], one["different_vocabularies"])
        for name, one in (("bertsmith", record["ours"]), ("tokenizers", record["theirs"]))
    ]
    header = [
        "trainer",
        "seconds (median)",
        "peak GiB",
        "pieces per held-out word",
        f"different vocabularies in {record['n']} runs, files reordered",
    ]
    return f"{record['size']:,} pieces from text_en's training files, {record['workers']} workers.\n\n" + table(
        header, rows
    )


def prepare(record: Record) -> str:
    rows = [
        (
            name,
            one["mb_per_second"],
            f"{one['spread'][0]} to {one['spread'][1]}",
            f"{one['parent_mib']} + {one['largest_worker_mib']}",
            one["disk_to_tokens"],
        )
        for name, one in record["figures"].items()
    ]
    return table(
        ["text", "MB/s (median)", "range", "peak MiB, parent + largest worker", "bytes on disk by the tokens' own"],
        rows,
    )


def pretrain(record: Record) -> str:
    rows = [(name, f"{value:,}") for name, value in record["tokens_per_second"].items()]
    head = (
        f"`{record['size']}`, {record['batch']} rows of {record['length']} tokens, dropout 0.1 on both sides, "
        f"steps in turns, medians of {record['n']}."
    )
    return f"{head}\n\n{table(['side', 'tokens a second'], rows)}\n\nBest to best: **{record['ratio']:.2f} times**."


def real(record: Record) -> str:
    rows = [
        (
            f"{point['seconds'] / 60:.1f}", f"{point['step']:,}", f"{point['tokens']:,}",
            f"{point['mlm_loss']:.3f}", f"{point['mlm_accuracy']:.1%}", f"{point['nsp_accuracy']:.1%}",
        )
        for point in record["curve"]
    ]  # fmt: skip
    last = record["curve"][-1]
    plateau = (
        f"Word frequencies alone: loss {last['frequent_loss']:.2f}; "
        f"always the most frequent piece: accuracy {last['frequent_accuracy']:.1%}."
    )
    head = f"Recipe `{record['recipe']}`, {record['minutes']:g} minutes, {', '.join(record['settings'])}. {plateau}"
    return (
        f"{head}\n\n{table(['minutes', 'step', 'tokens', 'held-out MLM loss', 'MLM accuracy', 'NSP accuracy'], rows)}"
    )


def finetune(record: Record) -> str:
    metric, rows = record["metric"], []
    for init in ("random", "pretrained"):
        found = record["results"].get(init)
        if found:
            spread = found["spread"][metric]
            rows.append(
                (
                    init,
                    f"{found['learning_rate']:g}",
                    f"{found['mean'][metric]:.4f}",
                    "" if spread is None else f"± {spread:.4f}",
                    len(found["collapsed"]),
                )
            )
    train, test = record["key"]["rows"]
    head = (
        f"**{record['task']}**: {train:,} rows to train, {test:,} scored; "
        f"majority accuracy {record['results']['majority']:.4f}."
    )
    return f"{head}\n\n{table(['weights', 'best rate', metric, 'spread over seeds', 'collapsed'], rows)}"


def demo(record: Record) -> str:
    pretraining = table(["", "start", "end"], record["pretraining"])
    scores = table(["", "accuracy", "spread"], record["scores"])
    return f"{record['about']}\n\n{pretraining}\n\n{scores}"


SECTIONS = {
    "demo": ("`make demo`", demo),
    "tokenizer_parity": ("Tokenizer: equal to transformers", tokenizer_parity),
    "vocab": ("Vocabulary trainer", vocab),
    "prepare": ("Text to shards", prepare),
    "pretrain": ("Pre-training speed beside transformers", pretrain),
    "real": ("Pre-training on real text", real),
    "finetune": ("Fine-tuning what was pre-trained", finetune),
}


if __name__ == "__main__":
    main()
