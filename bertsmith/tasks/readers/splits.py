"""The three tables of a labelled task, train, dev and test, read together so that they agree."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertsmith.base.files import sha256_of
from bertsmith.base.log import Log
from bertsmith.base.seeds import stream
from bertsmith.errors import ConfigError, TaskError
from bertsmith.tasks.readers.table import Columns, Example, check_labels, find_columns, label_order, read_table

Source = str | Path | Sequence[Example]


@dataclass(frozen=True)
class LabelData:
    """Labelled examples; `labels` are train's names, and a label's place there is its class number."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    labels: tuple[str, ...]
    columns: Columns

    @property
    def fingerprints(self) -> dict[str, str]:
        """One a split, over texts and labels in order, wherever they were read from."""
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: _fingerprint(examples) for name, examples in parts.items()}


def read_splits(
    train: Source, dev: Source | None, test: Source | None, columns: Columns, *, dev_share: float, log: Log
) -> LabelData:
    """Reads what is given as paths, takes a dev split from train where there is none, and checks labels by name.

    Columns left open are guessed from train's header; dev and test then have theirs under the same names. The dev split
    takes `dev_share` of each label's rows (and leaves each at least one), always the same ones for the same rows.
    """
    found = columns
    if isinstance(train, (str, Path)):
        found = find_columns(train, columns)
        log.say(f"{train}: {found}")
    tables = [
        () if source is None else _read(source, found, columns.format, name, log)
        for name, source in (("train", train), ("dev", dev), ("test", test))
    ]
    _check_same_kind([examples[0] for examples in tables if examples])
    labels = label_order({str(example.label) for example in tables[0]})
    if len(labels) < 2:
        raise TaskError(
            f"{_name(train, 'train')}: every row has the label {labels[0]!r}; at least two labels are needed"
        )
    for name, source, examples in (("dev", dev, tables[1]), ("test", test, tables[2])):
        check_labels(examples, labels, _name(source, name), known_from="train's labels")
    if dev is None and dev_share > 0:
        tables[0], tables[1] = split_by_label(tables[0], dev_share)
        log.say(
            f"no dev table: {len(tables[1]):,} of train's {len(tables[0]) + len(tables[1]):,} rows are set aside as dev"
        )
    return LabelData(tables[0], tables[1], tables[2], tuple(labels), replace(found, format=columns.format))


def split_by_label(
    examples: Sequence[Example], share: float, seed: int = 0
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """(the rest, `share` of each label's examples), both in their old order; a label's last row stays in the rest."""
    aside: set[int] = set()
    for label in sorted({str(example.label) for example in examples}):
        places = [place for place, example in enumerate(examples) if example.label == label]
        many = min(max(1, round(share * len(places))), len(places) - 1)
        aside.update(int(place) for place in stream(seed, "dev split", label).permutation(places)[:many])
    if not aside:
        raise ConfigError("no label has two rows, so no dev split can be taken; give a dev table, or dev_share=0")
    rest = tuple(example for place, example in enumerate(examples) if place not in aside)
    return rest, tuple(example for place, example in enumerate(examples) if place in aside)


def warn_of_empty(examples: Sequence[Example], name: str, log: Log) -> None:
    """Empty texts are kept, but said."""
    empty = [
        example
        for example in examples
        if not example.text.strip() or (example.pair is not None and not example.pair.strip())
    ]
    if empty:
        log.warn(
            f"{name}: {len(empty):,} of {len(examples):,} rows have an empty text "
            f"(first: {empty[0].where}); they are kept"
        )


def _read(source: Source, found: Columns, format: str | None, name: str, log: Log) -> tuple[Example, ...]:
    if isinstance(source, (str, Path)):
        examples = read_table(
            source, text=found.text, pair=found.pair, label=found.label, header=found.header, format=format
        )
    else:
        examples = list(source)
        if not examples:
            raise TaskError(f"{name}: no examples; at least one was expected")
        without = next((example for example in examples if not example.label), None)
        if without is not None:
            raise TaskError(f"{without.where}: this example has no label; every one needs one here")
    _check_same_kind(examples)
    warn_of_empty(examples, _name(source, name), log)
    return tuple(examples)


def _check_same_kind(examples: Sequence[Example]) -> None:
    for example in examples:
        if (example.pair is None) != (examples[0].pair is None):
            kinds = ("a single text", "a pair") if example.pair is None else ("a pair", "a single text")
            raise TaskError(
                f"{example.where}: {kinds[0]}, but {examples[0].where} is {kinds[1]}; one kind was expected"
            )


def _name(source: Source | None, name: str) -> str:
    return str(source) if isinstance(source, (str, Path)) else name


def _fingerprint(examples: Sequence[Example]) -> str:
    rows = [(example.text, example.pair, example.label) for example in examples]
    return sha256_of(json.dumps(rows).encode())
