"""`bertsmith demo`: raw text to answers, the whole main road in one command, with a report to look at.

Vocabulary, shards, pre-training, masks filled in held-out sentences, and a classifier fine-tuned from the pre-trained
weights and from random ones beside TF-IDF with logistic regression. Nothing is downloaded: without --data the text is
the Python documentation that the interpreter carries. A demo that was stopped goes on where it stood.
"""

import contextlib
import importlib.util
import io
import json
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.base.config import to_mapping, with_settings
from bertsmith.base.files import check_own_folder, folder_lock, fresh_folder, read_text, sha256_of, write_file
from bertsmith.base.log import Log, Progress, read_records
from bertsmith.cli import demo_report, demo_text, options
from bertsmith.cli.app import AFTER_INTERRUPT
from bertsmith.cli.train import find_recipe
from bertsmith.errors import ConfigError, Interrupted, MissingExtra, VocabularyError

if TYPE_CHECKING:
    from bertsmith.train.settings import Recipe

ABOUT = "demo.json"  # what a demo's folder is about
VOCABULARY = 8_000  # pieces; fewer only if the text does not give as many
PER_LABEL = 20  # labelled texts a class: with hundreds, plain word counts are as good
SEEDS = (0, 1, 2)  # each with its own sample of labelled texts, its own head and order
RATES = {"pretrained": (2e-3,), "random": (1e-3, 2e-3, 4e-3)}  # random weights get the best of three
DEV_ROWS = 128
EPOCHS = 7  # with Muon; AdamW needs several times as many before random weights learn anything
MOST_TOKENS = 64  # as long as the rows of the pre-training
FILLED = 8  # sentences shown with their masks filled


def demo(
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="More files of text, after those of --data.", show_default=False),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Your own text instead of Python's documentation.", show_default=False),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled CSV, TSV or JSONL for the classifier (columns text and label); needs --data.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for everything that is made.")] = Path("runs/demo"),
    recipe: Annotated[str, typer.Option(metavar="NAME", help="Recipe of the pre-training: a name or a file.")] = "demo",
    set: options.Changes = [],  # noqa: B006 - typer makes a new one for each call
    quiet: options.Quiet = False,
) -> None:
    """The whole road on one page: vocabulary, shards, pre-training, masks, a classifier, and report.html."""
    from bertsmith.train.settings import read_recipe

    log = Log(quiet=quiet)
    files = [*(data or []), *(more or [])]
    if labels is not None and not files:
        raise typer.BadParameter("--labels needs --data: the text to pre-train on")
    if (labels is not None or not files) and importlib.util.find_spec("sklearn") is None:
        raise MissingExtra("scikit-learn", "metrics", "the demo's TF-IDF row")  # before the work, not after it
    settings = read_recipe(find_recipe(recipe), set)
    if settings.train.evaluate_every is None:
        settings = with_settings(settings, [f"train.evaluate_every={max(1, settings.train.steps // 8)}"])
    check_own_folder(out, "a demo", (ABOUT,))
    with folder_lock(out), _going_on():
        _claim(out, files, labels, settings)
        text = _text(files, labels, out, log)
        tokenizer = _vocabulary(text, out, log)
        model = _pretrained(text, tokenizer, out, settings, log)
        history = read_records(out / "run" / "run.jsonl")
        examples = _fill(model, text, log)
        scores = _classify(model, text, out, log) if text.labelled else None
        result = demo_report.Result(sizes=text.sizes, recipe=recipe, history=history, filled=examples, scores=scores)
        write_file(out / "report.html", demo_report.as_html(result))
        write_file(out / "result.json", json.dumps(demo_report.as_mapping(result), ensure_ascii=False, indent=1) + "\n")
        print(demo_report.as_text(result))
        print(f"\nreport     {out / 'report.html'}\nmodel      {model}")
        if examples:
            print(f"try        bertsmith fill --model {model} {shlex.quote(examples[0].masked)}")


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Of the commands inside some say --resume when they are interrupted; a demo is simply typed again."""
    try:
        yield
    except Interrupted as error:
        raise Interrupted(AFTER_INTERRUPT["demo"]) from error


def _claim(out: Path, files: Sequence[Path], labels: Path | None, settings: "Recipe") -> None:
    """Says in `out` what is made there; the same command goes on there, another one is refused."""
    about = {
        "text": [sha256_of(path) for path in files] or f"the documentation of Python {platform.python_version()}",
        "labels": None if labels is None else sha256_of(labels),
        "settings": to_mapping(settings),
    }
    written = json.dumps(about, ensure_ascii=False, indent=1) + "\n"
    if not (out / ABOUT).exists():
        write_file(out / ABOUT, written)
    elif read_text(out / ABOUT) != written:
        raise ConfigError(
            f"{out}: holds a demo of other text or with other settings ({ABOUT}); remove the folder, "
            "or choose another with --out"
        )


def _text(data: Sequence[Path], labels: Path | None, out: Path, log: Log) -> demo_text.DemoText:
    log.say(
        "text: " + (", ".join(path.name for path in data) if data else "the documentation that this Python carries")
    )
    text = demo_text.from_files(data, labels, out / "text") if data else demo_text.build(out / "text")
    log.say("      " + ", ".join(f"{value:,} {name}" for name, value in text.sizes.items()))
    return text


def _vocabulary(text: demo_text.DemoText, out: Path, log: Log) -> Path:
    from bertsmith.corpus.documents import ReadCounts, read_texts
    from bertsmith.text.normalize import Normalizer
    from bertsmith.text.tokenizer import Tokenizer
    from bertsmith.text.word_counts import count_files
    from bertsmith.text.wordpiece import train_wordpiece

    folder = out / "vocabulary"
    normalizer = Normalizer(preset="unicode-safe")
    counts = count_files([text.train], normalizer, reader=read_texts, counts=ReadCounts())
    with Progress(log, VOCABULARY, "pieces", "vocabulary") as progress:

        def show(stage: str, done: int, total: int) -> None:
            progress.advance(done - progress.done)

        size, limit = VOCABULARY, None
        while True:
            try:
                vocabulary = train_wordpiece(counts, size=size, limit_alphabet=limit, on_progress=show)
                break
            except VocabularyError:
                # A small text of one's own: half the size, down to where nothing can be shown any more.
                limit = 1_000
                size //= 2
                if size < 250:
                    raise
    with fresh_folder(folder) as aside:
        Tokenizer(vocabulary, normalizer).save(aside)
    log.say(f"vocabulary: {len(vocabulary):,} pieces from {counts.total:,} words")
    return folder


def _pretrained(text: demo_text.DemoText, tokenizer: Path, out: Path, settings: "Recipe", log: Log) -> Path:
    from bertsmith.corpus.prepare import prepare
    from bertsmith.train.pretrain import pretrain

    for name, path in (("train", text.train), ("heldout", text.heldout)):
        prepare([path], tokenizer_folder=tokenizer, out=out / "corpus" / name, log=log)
    return pretrain(
        settings,
        data=out / "corpus" / "train",
        heldout=out / "corpus" / "heldout",
        run=out / "run",
        resume=(out / "run").exists(),
        log=log,
    )


def _fill(model: Path, text: demo_text.DemoText, log: Log) -> list[demo_report.Filled]:
    """Sentences of the held-out text, spread over it, each with a whole-piece word near its middle masked."""
    from bertsmith.api.load import load
    from bertsmith.corpus.documents import read_texts
    from bertsmith.corpus.sentences import split_sentences

    loaded = load(model)
    known = set(loaded.tokenizer.vocabulary.pieces)
    found = []
    for paragraph in read_texts([text.heldout]):
        for sentence in split_sentences(" ".join(paragraph.split())):
            words = sentence.split()
            middle = [
                index for index, word in enumerate(words) if word.isalpha() and word.lower() in known and len(word) > 3
            ]
            if 8 <= len(words) <= 24 and middle and sentence[-1] in ".!?":
                index = min(middle, key=lambda at: abs(at - len(words) // 2))
                found.append(
                    (
                        " ".join(words[:index]) + " " * (index > 0),
                        words[index],
                        " " * (index + 1 < len(words)) + " ".join(words[index + 1 :]),
                    )
                )
    fits = [
        parts for parts in found if len(loaded.tokenizer.encode("[MASK]".join(parts[::2])).ids) <= loaded.max_length
    ]
    chosen = fits[:: max(1, len(fits) // FILLED)][:FILLED]
    filled = [
        demo_report.Filled(before, word, after, loaded.fill(f"{before}[MASK]{after}", top=5)[0])
        for before, word, after in chosen
    ]
    log.say(f"masks filled in {len(filled)} held-out sentences")
    return filled


def _classify(model: Path, text: demo_text.DemoText, out: Path, log: Log) -> dict[str, Any]:
    """Accuracy on the test side of the most frequent class, TF-IDF, random and pre-trained weights; a sample a seed."""
    from bertsmith.tasks.readers.table import Example
    from bertsmith.train.finetune import FinetuneSettings, finetune

    def examples(rows: Sequence[Mapping[str, str]], side: str) -> list[Example]:
        return [
            Example(row["text"], row.get("pair"), row["label"], f"{side}:{index + 1}") for index, row in enumerate(rows)
        ]

    dev = examples(demo_text.sample(text.labelled["dev"], seed=0, most=DEV_ROWS), "dev")
    test = examples(text.labelled["test"], "test")
    found: dict[str, Any] = {"dev": len(dev), "test": len(test), "rows": {}, "epochs": EPOCHS, "tokens": MOST_TOKENS}
    log.say(f"classifiers: {EPOCHS} epochs; texts are cut at {MOST_TOKENS} tokens, except for TF-IDF")
    runs: dict[str, list[dict[str, Any]]] = {"pretrained": [], "random": []}
    words: list[float] = []
    for seed in SEEDS:
        rows = demo_text.sample(text.labelled["train"], seed=seed, per_label=PER_LABEL)
        found["train"] = len(rows)
        words.append(_tf_idf(rows, text.labelled["test"]))
        for init, scores in runs.items():
            # The best of the rates on the first sample by development score, and then the same.
            rates = (scores[0]["learning_rate"],) if scores else RATES[init]
            settings = FinetuneSettings(
                epochs=EPOCHS,
                batch=16,
                search=rates,
                optimizer="muon",
                max_length=MOST_TOKENS,
                seeds=(seed,),
                dropout=0.1,
                warmup=0.1,
                init=init,  # type: ignore[arg-type]
            )
            folder = out / "classifier" / f"{init}-{seed}"
            log.say(f"classifier from {init} weights, sample {seed}")
            quiet = Log(folder, quiet=True, screen=io.StringIO())  # else each run warns of texts that are cut
            scores.append(
                finetune(
                    settings,
                    model=model,
                    train=examples(rows, "train"),
                    dev=dev,
                    test=test,
                    out=folder,
                    log=quiet,
                    resume=True,
                )
            )
    for init, scores in runs.items():
        found["rows"][init] = [score["seeds"][0]["test"]["accuracy"] for score in scores]
        found[f"{init} rates"] = [score["learning_rate"] for score in scores]
    found["rows"]["tf-idf"] = words
    found["rows"]["majority"] = [runs["random"][0]["majority"]["test"]]
    found["labels"] = runs["pretrained"][0]["labels"]  # in the order of the confusion matrix
    best = max(runs["pretrained"], key=lambda score: score["seeds"][0]["dev"]["accuracy"])
    found["confusion"] = best["seeds"][0]["test"]["confusion"]
    return found


def _tf_idf(train: Sequence[Mapping[str, str]], test: Sequence[Mapping[str, str]]) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    def joined(row: Mapping[str, str]) -> str:
        return " ".join(filter(None, (row["text"], row.get("pair"))))

    classifier = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1_000))
    classifier.fit([joined(row) for row in train], [row["label"] for row in train])
    return float(classifier.score([joined(row) for row in test], [row["label"] for row in test]))
