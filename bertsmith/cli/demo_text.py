"""Text for the demo that every CPython carries: the language reference and the standard library's docstrings.

Documents are the reference's topics and the library's modules (their docstrings in order). The labelled task is: which
package does this docstring belong to? Modules, never single docstrings, are divided between training, development and
test, so that no module's wording is on two sides; the development and test modules are kept out of the pre-training
text too.
"""

import ast
import hashlib
import inspect
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.files import write_file
from bertsmith.base.seeds import stream
from bertsmith.corpus.documents import read_documents
from bertsmith.errors import CorpusError, TaskError
from bertsmith.tasks.readers.table import read_table

# In this order; the first eight that are installed and large enough are the classes (Debian splits off tkinter, 3.12
# dropped distutils).
PACKAGES = (
    "tkinter", "asyncio", "distutils", "email", "importlib", "xml", "multiprocessing", "unittest",
    "idlelib", "ctypes", "lib2to3", "http", "logging", "concurrent", "json", "encodings",
)  # fmt: skip
CLASSES, LEAST_CLASSES = 8, 6
LEAST_TRAIN, LEAST_TEST = 40, 15  # docstrings a class must have to be one
HELDOUT_SHARE = 12  # one document in so many, besides the task's development and test modules
PART = 100  # paragraphs; longer documents of one's own text are cut into parts, since NSP needs several documents


@dataclass(frozen=True)
class Module:
    name: str  # "email.mime.text"
    docstrings: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def fate(self) -> int:
        """A number from the name alone, so that the split is the same on every machine."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True)
class DemoText:
    train: Path  # documents in <doc> marks
    heldout: Path
    labelled: dict[str, list[dict[str, str]]]  # train, dev, test: {"text", "label", "module"}
    sizes: dict[str, int]  # what was found, for the report


def build(folder: Path) -> DemoText:
    """Writes train.txt and heldout.txt into `folder` and returns them with the labelled docstrings."""
    modules = list(standard_library())
    labelled, split = label_docstrings(modules)
    reserved = {name for name, side in split.items() if side != "train"}
    documents = [(f"topic {name}", text) for name, text in topics()]
    documents += [(module.name, "\n\n".join(module.docstrings)) for module in modules]
    train: list[tuple[str, str]] = []
    heldout: list[tuple[str, str]] = []
    for index, (name, text) in enumerate(documents):
        held = name in reserved or (index % HELDOUT_SHARE == 0 and name not in split)
        (heldout if held else train).append((name, text))
    folder.mkdir(parents=True, exist_ok=True)
    for side, rows in labelled.items():
        write_file(folder / f"{side}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return _written(folder, train, heldout, labelled)


def from_files(paths: Sequence[Path], labels: Path | None, folder: Path) -> DemoText:
    """The same from a user's files; long documents are cut into parts; one in twelve is held out, and two at least."""
    documents: list[tuple[str, str]] = []
    for path in paths:
        for document in read_documents(path):
            for start in range(0, len(document.paragraphs), PART):
                documents.append((f"{len(documents)}", "\n\n".join(document.paragraphs[start : start + PART])))
    if len(documents) < 4:
        raise CorpusError(
            f"{len(documents)} documents of up to {PART} paragraphs in {', '.join(map(str, paths))}: "
            "at least four are needed, two to train on and two to hold out (a random next segment comes from another "
            "document). Give more text, or blank lines between paragraphs"
        )
    every = min(HELDOUT_SHARE, len(documents) // 2)  # two held out at least, and two left
    heldout = [document for index, document in enumerate(documents) if index % every == 1]
    train = [document for index, document in enumerate(documents) if index % every != 1]
    return _written(folder, train, heldout, labelled_table(labels) if labels else {})


def _written(
    folder: Path,
    train: Sequence[tuple[str, str]],
    heldout: Sequence[tuple[str, str]],
    labelled: dict[str, list[dict[str, str]]],
) -> DemoText:
    """train.txt and heldout.txt in `folder`, and what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    write_documents(folder / "train.txt", train)
    write_documents(folder / "heldout.txt", heldout)
    sizes = {
        "documents": len(train),
        "heldout documents": len(heldout),
        "characters": sum(len(text) for _, text in train),
    }
    return DemoText(folder / "train.txt", folder / "heldout.txt", labelled, sizes)


def labelled_table(path: Path) -> dict[str, list[dict[str, str]]]:
    """A user's labelled rows, each label's divided 4 : 1 : 3 between train, dev and test in an order of its own."""
    by_label: dict[str, list[dict[str, str]]] = {}
    for example in read_table(path):
        row = {"text": example.text, "label": str(example.label)} | (
            {"pair": example.pair} if example.pair is not None else {}
        )
        by_label.setdefault(str(example.label), []).append(row)
    if len(by_label) < 2:
        raise TaskError(f"{path}: one label only ({next(iter(by_label))!r}); at least two are needed to tell apart")
    sides: dict[str, list[dict[str, str]]] = {"train": [], "dev": [], "test": []}
    turns = ("train", "test", "dev", "train", "test", "train", "test", "train")
    for label in sorted(by_label):
        rows = by_label[label]
        if len(rows) < len(turns):
            raise TaskError(
                f"{path}: {len(rows)} rows with label {label!r}; at least {len(turns)} of each label are needed"
            )
        for index, at in enumerate(stream(0, "demo", label).permutation(len(rows))):
            sides[turns[index % len(turns)]].append(rows[at])
    return sides


def sample(
    rows: Sequence[Mapping[str, str]], *, seed: int, per_label: int | None = None, most: int | None = None
) -> list[Mapping[str, str]]:
    """`per_label` rows of each label (or all, if there are fewer), or `most` rows in all; drawn without replacement."""
    drawn = []
    taken: Counter[str] = Counter()
    for at in stream(seed, "demo sample").permutation(len(rows)):
        label = rows[at]["label"]
        if per_label is None or taken[label] < per_label:
            taken[label] += 1
            drawn.append(rows[at])
    return drawn[:most]


def topics() -> list[tuple[str, str]]:
    """The language reference as pydoc carries it, without its reStructuredText rulers."""
    from pydoc_data.topics import topics as raw  # half a megabyte of text, wanted only here

    return [(name, re.sub(r"^[*=~^\"-]{3,}$", "", raw[name], flags=re.MULTILINE)) for name in sorted(raw)]


def standard_library() -> Iterator[Module]:
    """Every module of the standard library that has docstrings, by name.

    Not its own tests: they are code rather than prose, and slow to parse.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if {"site-packages", "dist-packages", "pydoc_data", "test", "tests", "idle_test"} & set(parts):
            continue
        docstrings = tuple(docstrings_of(path))
        if docstrings:
            yield Module(".".join(parts).removesuffix(".__init__"), docstrings)


def docstrings_of(path: Path) -> list[str]:
    """The docstrings of one source file in order, cleaned, doctest sessions left out; none if it is no valid Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and the like, in some distributions
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text and (prose := clean(text)):
                found.append((getattr(node, "lineno", 0), prose))
    return [prose for _, prose in sorted(found)]


def clean(docstring: str) -> str:
    lines = [line for line in inspect.cleandoc(docstring).splitlines() if not re.match(r"\s*(>>>|\.\.\. )", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def label_docstrings(modules: Iterable[Module]) -> tuple[dict[str, list[dict[str, str]]], dict[str, str]]:
    """Labelled rows by side, and every module's side.

    Of each package's modules a third is for test, a sixth for development.
    """
    by_package: dict[str, list[Module]] = {}
    for module in modules:
        if module.package in PACKAGES:
            by_package.setdefault(module.package, []).append(module)
    rows: dict[str, list[dict[str, str]]] = {"train": [], "dev": [], "test": []}
    split: dict[str, str] = {}
    labels: list[str] = []
    for package in PACKAGES:
        sides = _divide(by_package.get(package, []))
        texts = {side: _rows(members) for side, members in sides.items()}
        if (
            len(labels) == CLASSES
            or len(texts["train"]) < LEAST_TRAIN
            or len(texts["test"]) < LEAST_TEST
            or not texts["dev"]
        ):
            continue
        labels.append(package)
        for side, members in sides.items():
            rows[side] += texts[side]
            split.update((module.name, side) for module in members)
    if len(labels) < LEAST_CLASSES:
        raise TaskError(
            f"only {len(labels)} packages of the standard library here have enough docstrings "
            f"({', '.join(labels) or 'none'}), {LEAST_CLASSES} are needed; is the library's source installed? "
            "Bring your own text instead: bertsmith demo --data FILE --labels FILE"
        )
    return rows, split


def _divide(modules: list[Module]) -> dict[str, list[Module]]:
    """By size in turn, largest first, so that each side gets large and small ones."""
    sides: dict[str, list[Module]] = {"train": [], "dev": [], "test": []}
    turns = ("train", "test", "train", "dev", "train", "test")
    for index, module in enumerate(sorted(modules, key=lambda m: (-len(m.docstrings), m.fate))):
        sides[turns[index % len(turns)]].append(module)
    return sides


def _rows(modules: list[Module]) -> list[dict[str, str]]:
    """Docstrings of at least five words, each text once."""
    seen: dict[str, dict[str, str]] = {}
    for module in modules:
        for text in module.docstrings:
            if len(text.split()) >= 5:
                seen.setdefault(text, {"text": " ".join(text.split()), "label": module.package, "module": module.name})
    return list(seen.values())


def write_documents(path: Path, documents: Iterable[tuple[str, str]]) -> None:
    write_file(path, "".join(f'<doc id="{name}">\n{text}\n</doc>\n' for name, text in documents if text.strip()))
