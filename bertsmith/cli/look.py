"""`bertsmith inspect` and `doctor`: what a folder is, and what this machine offers."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import bertsmith
from bertsmith.base.log import read_records
from bertsmith.cli import options
from bertsmith.errors import BertsmithError, FileError

if TYPE_CHECKING:
    from bertsmith.text.tokenizer import Tokenizer

CORE = ("torch", "numpy", "tokenizers", "safetensors", "rich", "typer")
OPTIONAL = {"sklearn": "metrics", "zstandard": "zstd", "transformers": "dev"}  # module -> extra that brings it


def inspect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Model, corpus, run or vocabulary folder, or a vocab.txt.", show_default=False
        ),
    ],
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Report how the tokenizer cuts this text; may be repeated.", show_default="none"
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read a corpus whole and compare its checksums.")] = False,
    json: options.Json = False,
) -> None:
    """Say what a folder is: sizes, heads, tokenizer, history; exit code 1 if a model does not fit together."""
    found = _described(folder, verify)
    if text:
        found["report"] = _report(folder, found["kind"], text)
    if json:
        options.print_json(found)
    else:
        report = found.pop("report", None)
        options.print_table(found)
        if report is not None:
            from bertsmith.text.report import show_report

            print(show_report(report))
    if found.get("fits") is False:
        raise typer.Exit(BertsmithError.exit_code)


def doctor(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the free disk space is looked up.")] = Path("."),
    json: options.Json = False,
) -> None:
    """Show versions, processor, the precision that would be chosen and why, optional packages, memory and disk."""
    import torch

    from bertsmith.nn.device import choose_device, choose_precision

    device = choose_device("auto")
    precision = choose_precision("auto", device)
    found: dict[str, Any] = {
        "bertsmith": bertsmith.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        **{name: _version(name) for name in CORE},
        "system": f"{platform.system()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device) if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})",
        "precision": f"{precision.name} ({precision.reason})",
        **{f"optional: {module}": _optional(module, extra) for module, extra in OPTIONAL.items()},
        "memory": _memory(),
        "disk free": f"{shutil.disk_usage(_existing(folder)).free / 2**30:.1f} GiB",
    }
    options.show(found, json)


def _described(folder: Path, verify: bool) -> dict[str, Any]:
    if not folder.exists():
        raise FileError(f"{folder}: no such file or folder")
    if folder.is_file() or (not _is_model(folder) and _is_vocabulary(folder)):
        return {"kind": "vocabulary", **_tokenizer(folder)}
    if (folder / "manifest.json").is_file():
        return {"kind": "corpus", **_corpus(folder, verify)}
    if _is_model(folder):
        from bertsmith.checkpoints.folder import describe

        return {"kind": "model", **describe(folder)}
    if any((folder / name).exists() for name in ("run.jsonl", "recipe.toml", "plan.json")):
        return {"kind": "run", **_run(folder)}
    held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise FileError(
        f"{folder}: is no model folder (config.json), corpus (manifest.json), run (run.jsonl) or vocabulary"
        f" (vocab.txt); it holds {held}"
    )


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists() or any(folder.glob("*.safetensors"))


def _is_vocabulary(folder: Path) -> bool:
    return (folder / "vocab.txt").exists() or (folder / "tokenizer.json").exists()


def _tokenizer(source: Path) -> dict[str, Any]:
    from bertsmith.text.tokenizer import Tokenizer

    return _about(Tokenizer.load(source))


def _about(tokenizer: "Tokenizer") -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary
    return {
        "pieces": len(vocabulary),
        "unused": sum(piece.startswith("[unused") for piece in vocabulary.pieces),
        "normalizer": tokenizer.normalizer.to_mapping(),
        "fingerprint": tokenizer.fingerprint,
    }


def _corpus(folder: Path, verify: bool) -> dict[str, Any]:
    from bertsmith.corpus.shards import Corpus

    corpus = Corpus.open(folder, verify=verify)
    tokenizer = _about(corpus.tokenizer())
    return {
        "documents": corpus.documents,
        "sentences": corpus.sentences,
        "tokens": corpus.tokens,
        "shards": len(corpus.shards),
        "fingerprint": corpus.fingerprint,
        "pieces": tokenizer["pieces"],
        "normalizer": tokenizer["normalizer"],
        "checksums": "right" if verify else "not compared (--verify)",
    }


def _run(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (folder / "recipe.toml").is_file():
        from bertsmith.base.config import read_toml

        found |= read_toml(folder / "recipe.toml")
    records = read_records(folder / "run.jsonl")
    found["records"] = len(records)
    for kind in ("step", "heldout", "finetuned"):
        last = next((record for record in reversed(records) if record["kind"] == kind), None)
        if last is not None:
            found[f"last {kind}"] = {name: value for name, value in last.items() if name not in ("kind", "time")}
    found["states"] = sorted(path.name for path in (folder / "state").glob("step-*")) or "none"
    found["models"] = sorted(str(path.parent) for path in folder.rglob("config.json")) or "none"
    return found


def _report(folder: Path, kind: str, files: list[Path]) -> dict[str, Any]:
    from bertsmith.corpus.documents import read_texts
    from bertsmith.text.report import vocabulary_report
    from bertsmith.text.tokenizer import Tokenizer

    if kind == "run":
        raise FileError(f"{folder}: a run has no tokenizer of its own; name its model folder")
    return vocabulary_report(Tokenizer.load(folder / "tokenizer" if kind == "corpus" else folder), read_texts(files))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _optional(module: str, extra: str) -> str:
    return "installed" if importlib.util.find_spec(module) else f"missing: pip install 'bertsmith[{extra}]'"


def _memory() -> str:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "unknown"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())
