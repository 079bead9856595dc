"""A fine-tuned model folder against a labelled table, or on texts without labels."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.files import check_writable_file, write_file
from bertsmith.base.log import Log
from bertsmith.checkpoints.folder import LoadedModel, load_model
from bertsmith.errors import CheckpointError, TaskError
from bertsmith.nn.device import Precision, choose_device, choose_precision
from bertsmith.tasks.label import LabelModel
from bertsmith.tasks.metrics.labels import LabelScores, label_scores
from bertsmith.tasks.predict import Item, LabelPrediction, predict_labels
from bertsmith.tasks.readers.splits import warn_of_empty
from bertsmith.tasks.readers.table import Columns, Example, check_labels, read_table, table_format
from bertsmith.tasks.task import Task, label_names, task_of
from bertsmith.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LabelFolder:
    """A model folder with a classifier, ready to answer."""

    folder: Path
    model: LabelModel
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    task: Task | None  # None: the folder was not fine-tuned by bertsmith
    precision: Precision

    def predict(self, items: Sequence[Item], *, log: Log | None = None) -> list[LabelPrediction]:
        """A label for each text or pair, cut at the length the model was fine-tuned with."""
        most = self.task.max_length if self.task is not None else None
        return predict_labels(
            self.model, self.tokenizer, items, self.labels, max_length=most, precision=self.precision, log=log
        )


def load_label_model(folder: str | Path, *, device: str = "auto", precision: str = "auto") -> LabelFolder:
    """The classifier in `folder`; TaskError if it holds none."""
    folder = Path(folder)
    loaded: LoadedModel = load_model(folder)
    names = label_names(loaded.labels, str(folder))
    if loaded.label is None:
        raise TaskError(f"{folder}: this model folder has no classifier; fine-tune it first: bertsmith finetune")
    chosen = choose_device(device)
    model = LabelModel(loaded.encoder, loaded.label).to(chosen).eval()
    task = task_of(loaded.provenance, str(folder))
    if task is not None and task.labels != names:
        raise CheckpointError(
            f"{folder}: config.json names the labels {list(names)}, bertsmith.json {list(task.labels)}; "
            "one of them was edited"
        )
    return LabelFolder(folder, model, loaded.tokenizer, names, task, choose_precision(precision, chosen))


def evaluate(
    model: str | Path | LabelFolder,
    data: str | Path,
    *,
    columns: Columns | None = None,
    scores: str | Path | None = None,
    predictions: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    log: Log,
) -> LabelScores:
    """Scores of a fine-tuned model on a labelled table; `scores` and `predictions` are files to write them to.

    Columns left open are those of the training table, or else guessed from the header. Labels go by name, so a table
    may have them in any order and need not have all; one the model does not know is a TaskError with both lists.
    """
    if predictions is not None:
        check_predictions(predictions)
    if scores is not None:
        check_writable_file(scores)
    ready = model if isinstance(model, LabelFolder) else load_label_model(model, device=device, precision=precision)
    examples = _examples(ready, data, columns, labelled=True, log=log)
    check_labels(examples, ready.labels, data, known_from=f"the labels of {ready.folder}")
    answers = ready.predict([example.item for example in examples], log=log)
    found = label_scores(
        [str(example.label) for example in examples], [answer.label for answer in answers], ready.labels
    )
    if predictions is not None:
        write_predictions(predictions, answers, examples)
    if scores is not None:
        write_file(
            scores,
            json.dumps(
                {"data": str(data), "model": str(ready.folder), **found.to_mapping()}, ensure_ascii=False, indent=1
            )
            + "\n",
        )
    return found


def predict_file(
    model: str | Path | LabelFolder,
    data: str | Path,
    *,
    columns: Columns | None = None,
    predictions: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    log: Log,
) -> list[tuple[Example, LabelPrediction]]:
    """A prediction for each row of a table (or each line of a .txt file); labels in it are not looked at."""
    if predictions is not None:
        check_predictions(predictions)
    ready = model if isinstance(model, LabelFolder) else load_label_model(model, device=device, precision=precision)
    examples = _examples(ready, data, columns, labelled=False, log=log)
    answers = ready.predict([example.item for example in examples], log=log)
    if predictions is not None:
        write_predictions(predictions, answers, examples)
    return list(zip(examples, answers, strict=True))


def write_predictions(
    path: str | Path, predictions: Sequence[LabelPrediction], examples: Sequence[Example] | None = None
) -> None:
    """Writes one row a prediction, in order, to a .csv, .tsv or .jsonl file: label, then the probability of each label.

    csv and jsonl also hold the texts, if given; tsv does not, since a tab in a text would break the table.
    """
    kind = check_predictions(path)
    if examples is not None and len(examples) != len(predictions):
        raise TaskError(f"{len(examples)} rows and {len(predictions)} predictions; one for each was expected")
    write_file(
        path, _json_lines(predictions, examples) if kind == "jsonl" else _table(predictions, examples, kind, path)
    )


def check_predictions(path: str | Path) -> str:
    """csv, tsv or jsonl, by the suffix, where a file can be written; asked before the work is done in vain."""
    kind = table_format(path)
    if kind == "lines":
        raise TaskError(f"{path}: predictions are written as .csv, .tsv or .jsonl; the suffix .txt says none of these")
    check_writable_file(path)
    return kind


def _examples(
    ready: LabelFolder, data: str | Path, columns: Columns | None, *, labelled: bool, log: Log
) -> list[Example]:
    given = columns or Columns()
    known = ready.task.columns if ready.task is not None else Columns()
    header = known.header if given.header is None else given.header
    text, pair, label = given.text, given.pair, given.label
    # Names say nothing about a table without header, nor numbers about one with a header.
    if (known.header is not False) == (header is not False):
        if text is None:
            text, pair = known.text, pair or known.pair
        label = label or known.label
    examples = read_table(
        data, text=text, pair=pair, label=label, header=header, format=given.format, labelled=labelled
    )
    warn_of_empty(examples, str(data), log)
    if ready.task is not None and ready.task.pairs != (examples[0].pair is not None):
        expected, found = ("pairs", "single texts") if ready.task.pairs else ("single texts", "pairs")
        raise TaskError(
            f"{examples[0].where}: {ready.folder} was fine-tuned on {expected}, this table has {found}; "
            "name the columns"
        )
    return examples


def _json_lines(predictions: Sequence[LabelPrediction], examples: Sequence[Example] | None) -> str:
    lines = []
    for index, prediction in enumerate(predictions):
        example = None if examples is None else examples[index]
        texts = (
            {}
            if example is None
            else {"text": example.text, **({} if example.pair is None else {"pair": example.pair})}
        )
        lines.append(
            json.dumps(
                {**texts, "label": prediction.label, "probabilities": prediction.probabilities}, ensure_ascii=False
            )
        )
    return "".join(line + "\n" for line in lines)


def _table(
    predictions: Sequence[LabelPrediction], examples: Sequence[Example] | None, kind: str, path: str | Path
) -> str:
    names = list(predictions[0].probabilities) if predictions else []
    texts = examples if kind == "csv" else None
    pairs = texts is not None and any(example.pair is not None for example in texts)
    rows = [
        [
            *(["text"] if texts is not None else []),
            *(["pair"] if pairs else []),
            "label",
            *(f"p({name})" for name in names),
        ]
    ]
    for index, prediction in enumerate(predictions):
        before = [] if texts is None else [texts[index].text] + ([texts[index].pair or ""] if pairs else [])
        rows.append([*before, prediction.label, *(repr(prediction.probabilities[name]) for name in names)])
    if kind == "csv":
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
    broken = next((name for name in names if "\t" in name or "\n" in name), None)
    if broken is not None:
        raise TaskError(
            f"{path}: the label {broken!r} holds a tab or a line break, which a .tsv file cannot; write .csv or .jsonl"
        )
    return "".join("\t".join(row) + "\n" for row in rows)
