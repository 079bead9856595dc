"""`bertsmith evaluate`, `predict` and `fill`: what a model folder answers."""

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli import options
from bertsmith.errors import TaskError, UsageError

if TYPE_CHECKING:
    from bertsmith.tasks.predict import Item, LabelPrediction
    from bertsmith.tasks.readers.table import Columns


def evaluate(
    model: options.Model,
    data: Annotated[Path, typer.Option(metavar="FILE", help="Labelled table: .csv, .tsv, .jsonl.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the scores there, as JSON.", show_default="nowhere")
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write each row's prediction: .csv, .tsv, .jsonl.", show_default="nowhere"),
    ] = None,
    text: options.TextColumn = None,
    pair: options.PairColumn = None,
    label: options.LabelColumn = None,
    no_header: options.NoHeader = False,
    format: options.TableFormat = None,
    device: options.Device = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score a fine-tuned model on a labelled table: accuracy, macro F1, Matthews, confusion matrix.

    Columns that are not named are those the model was fine-tuned with. Labels go by name.
    """
    from bertsmith.base.log import Log
    from bertsmith.tasks.metrics.labels import show_scores
    from bertsmith.train.evaluate import evaluate as score

    scores = score(
        model,
        data,
        columns=_columns(text, pair, label, no_header, format),
        scores=out,
        predictions=predictions,
        device=device,
        log=Log(quiet=quiet),
    )
    if json:
        options.print_json(scores.to_mapping())
    else:
        print(show_scores(scores))


def predict(
    model: options.Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Texts to label; without any and without --input, lines of stdin. After -- a text may begin with -.",
            show_default=False,
        ),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table (.csv, .tsv, .jsonl) or lines (.txt).", show_default="none"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write predictions there: .csv, .tsv, .jsonl.", show_default="stdout"),
    ] = None,
    text: options.TextColumn = None,
    pair: options.PairColumn = None,
    no_header: options.NoHeader = False,
    format: options.TableFormat = None,
    device: options.Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a text.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Label texts, or pairs of texts, with a fine-tuned model; answers come in the order of the texts.

    Prints the label, its probability and the text, with tabs between; --json also the probability of every label.
    """
    if texts and input is not None:
        raise UsageError("TEXT and --input were both given; choose one")
    from bertsmith.base.log import Log
    from bertsmith.tasks.readers.table import Example
    from bertsmith.train.evaluate import check_predictions, load_label_model, predict_file, write_predictions

    if output is not None:
        check_predictions(output)
    log = Log(quiet=quiet)
    if input is not None:
        found = predict_file(
            model,
            input,
            columns=_columns(text, pair, None, no_header, format),
            predictions=output,
            device=device,
            log=log,
        )
        items: list[Item] = [example.item for example, _ in found]
        answers = [answer for _, answer in found]
    else:
        given = list(texts or _lines_of_stdin())
        items = list(given)
        ready = load_label_model(model, device=device)
        if ready.task is not None and ready.task.pairs:
            raise TaskError(f"{model}: was fine-tuned on pairs; give them as a table with two columns: --input FILE")
        answers = ready.predict(items, log=log)
        if output is not None:
            examples = [Example(item, None, None, f"text {number}") for number, item in enumerate(given, 1)]
            write_predictions(output, answers, examples)
    if output is not None:
        log.say(f"{output}: {len(answers):,} predictions")
    else:
        _print_answers(items, answers, json)


def fill(
    model: options.Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text with [MASK] in it.", show_default=False)],
    top: Annotated[int, typer.Option(metavar="N", help="Pieces shown for each [MASK].", min=1)] = 5,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Fill each [MASK] of a text with the likeliest pieces of a pre-trained model, and their probabilities."""
    from bertsmith.api.load import load

    found = load(model, device=device).fill(text, top=top)
    if json:
        masks = [[{"piece": piece, "probability": value} for piece, value in mask] for mask in found]
        options.print_json({"text": text, "masks": masks})
        return
    for number, mask in enumerate(found, 1):
        if len(found) > 1:
            print(f"[MASK] {number}")
        width = max(len(piece) for piece, _ in mask)
        for piece, probability in mask:
            print(f"{piece:<{width}}  {probability:.4f}")


def _columns(
    text: str | None, pair: str | None, label: str | None, no_header: bool, format: str | None
) -> "Columns | None":
    """None, which means as in fine-tuning, unless something was named."""
    from bertsmith.tasks.readers.table import columns

    if text is None and pair is None and label is None and not no_header and format is None:
        return None
    return columns(text=text, pair=pair, label=label, header=False if no_header else None, format=format)


def _lines_of_stdin() -> list[str]:
    from bertsmith.base.files import decode

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing to label: give TEXT, --input FILE, or lines on stdin")
    lines = decode(sys.stdin.buffer.read(), "standard input").split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _print_answers(items: "Sequence[Item]", answers: "Sequence[LabelPrediction]", as_json: bool) -> None:
    for item, answer in zip(items, answers, strict=True):
        first, second = (item, None) if isinstance(item, str) else item
        if as_json:
            texts = {"text": first} if second is None else {"text": first, "pair": second}
            shown = {**texts, "label": answer.label, "probabilities": answer.probabilities}
            print(json_module.dumps(shown, ensure_ascii=False))
        else:
            text = first if second is None else f"{first}\t{second}"
            print(f"{answer.label}\t{answer.probabilities[answer.label]:.4f}\t{' '.join(text.splitlines())}")
