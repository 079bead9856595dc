"""`bertsmith vocab`: a vocabulary from text, and what it does to text."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from bertsmith.cli import options

REPORT_CHARACTERS = 5_000_000  # of the training text, where no other text is given: a few seconds
OURS = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}  # files of a vocabulary folder, which may be replaced


def vocab(
    texts: options.TextFiles,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Vocabulary folder to write.", show_default=False)],
    size: Annotated[int, typer.Option(help="Pieces, special ones included.")] = 30_522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")] = False,
    preset: Annotated[
        Literal["bert", "unicode-safe"],
        typer.Option(help="Normalization: exactly BERT's, or one that leaves Hangul and kana whole."),
    ] = "bert",
    limit_alphabet: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Most characters in the alphabet; rarer ones become [UNK].", show_default="all", min=1
        ),
    ] = None,
    unused: Annotated[int, typer.Option(metavar="N", help="[unused*] pieces to put in for later use.", min=0)] = 0,
    min_count: Annotated[int, typer.Option(metavar="N", help="A pair seen fewer times is never merged.", min=1)] = 2,
    workers: options.Workers = 0,
    heldout: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Text to report on; may be repeated.",
            show_default="the first 5,000,000 characters of TEXT",
        ),
    ] = None,
    format: options.TextFormat = "auto",
    field: options.TextField = "text",
    encoding_errors: options.EncodingErrors = "strict",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a WordPiece vocabulary on text, and report how it cuts text.

    The same text gives the same vocabulary, byte for byte, whatever the number of workers and the order of the files.
    """
    from bertsmith.base.files import check_readable, check_writable_folder, fresh_folder
    from bertsmith.base.log import Log
    from bertsmith.corpus.documents import ReadCounts, read_texts
    from bertsmith.text.normalize import Normalizer
    from bertsmith.text.report import show_report, vocabulary_report
    from bertsmith.text.tokenizer import Tokenizer
    from bertsmith.text.vocabulary import LONGEST_WORD
    from bertsmith.text.word_counts import count_files
    from bertsmith.text.wordpiece import choose_alphabet, train_wordpiece

    log = Log(quiet=quiet)
    for path in (*texts, *(heldout or ())):
        check_readable(path)
    _check_replaceable(out)
    check_writable_folder(out.absolute().parent)
    reader = partial(read_texts, format=format, field=field, encoding_errors=encoding_errors)
    normalizer = Normalizer(preset, lowercase=not cased)
    stages = options.Stages(log, {"count": ("bytes", "counting words"), "merge": ("pieces", "merging pairs")})
    read = ReadCounts()
    counts = count_files(
        texts, normalizer, reader=reader, counts=read, workers=options.processes(workers), on_progress=stages.advance
    )
    vocabulary = train_wordpiece(
        counts, size=size, unused=unused, limit_alphabet=limit_alphabet, min_count=min_count, on_progress=stages.advance
    )
    tokenizer = Tokenizer(vocabulary, normalizer)
    with fresh_folder(out) as folder:  # before the report: what is wrong with held-out text costs no vocabulary
        tokenizer.save(folder)
    log.say(f"{out}: {len(vocabulary):,} pieces from {counts.total:,} words and marks ({counts.distinct:,} different)")
    read.tell(log)
    if counts.too_long:
        log.say(
            f"not counted: {counts.too_long:,} words of more than {LONGEST_WORD} characters, which are always [UNK]"
        )
    if counts.distinct > len(counts.words):
        log.say(f"the {len(counts.words):,} most frequent words took part in merging")
    if limit_alphabet is not None:
        lost = choose_alphabet(counts, limit_alphabet).left_out_rate
        if lost:
            log.say(f"--limit-alphabet leaves out {lost:.3%} of all characters")
    report = vocabulary_report(tokenizer, reader(heldout) if heldout else _first(reader(texts), REPORT_CHARACTERS))
    if json:
        options.print_json({"folder": str(out), "pieces": len(vocabulary), "words": counts.total, "report": report})
    else:
        print(show_report(report))


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def _check_replaceable(out: Path) -> None:
    """The folder is replaced whole, so nothing but an older vocabulary may stand in it."""
    from bertsmith.errors import FileError

    if out.exists() and not out.is_dir():
        raise FileError(f"{out}: is a file; a folder for the vocabulary was expected")
    others = sorted(path.name for path in out.iterdir() if path.name not in OURS) if out.is_dir() else []
    if others:
        raise FileError(f"{out}: holds other things than a vocabulary ({', '.join(others[:3])}); choose a new folder")
