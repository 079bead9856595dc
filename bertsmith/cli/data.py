"""`bertsmith prepare`: text to the shards that pre-training reads."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bertsmith.cli import options


def prepare(
    texts: options.TextFiles,
    tokenizer: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Vocabulary folder, model folder, vocab.txt or tokenizer.json.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Corpus folder to write.", show_default=False)],
    cased: Annotated[
        bool, typer.Option("--cased", help="The vocabulary is cased, where a bare vocab.txt does not say it.")
    ] = False,
    preset: Annotated[
        Literal["bert", "unicode-safe"] | None,
        typer.Option(help="Normalization, where it is not the tokenizer's own.", show_default="the tokenizer's"),
    ] = None,
    workers: options.Workers = 0,
    format: options.TextFormat = "auto",
    field: options.TextField = "text",
    encoding_errors: options.EncodingErrors = "strict",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tokenize text once, into shards that pre-training reads.

    The shards are the same, byte for byte, whatever the number of workers. Killed and started again, it goes on after
    the shards it had finished.
    """
    from bertsmith.base.log import Log
    from bertsmith.corpus.prepare import prepare as prepare_corpus

    log = Log(quiet=quiet)
    corpus = prepare_corpus(
        texts,
        tokenizer_folder=tokenizer,
        out=out,
        workers=options.processes(workers),
        format=format,
        field=field,
        encoding_errors=encoding_errors,
        lowercase=False if cased else None,
        preset=preset,
        log=log,
    )
    result = {
        "folder": str(out),
        "documents": corpus.documents,
        "sentences": corpus.sentences,
        "tokens": corpus.tokens,
        "shards": len(corpus.shards),
        "fingerprint": corpus.fingerprint,
    }
    options.show(result, json)
