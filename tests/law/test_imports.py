"""Imports go one way: a table and a walk over every import statement of the package."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bertsmith"

MAY_IMPORT = {
    "base": {"errors"},
    "text": {"errors", "base"},
    "corpus": {"errors", "base", "text"},
    "nn": {"errors", "base"},
    "models": {"errors", "base", "nn"},
    "checkpoints": {"errors", "base", "text", "nn", "models"},
    "objectives": {"errors", "base", "corpus", "nn", "models"},
    "tasks": {"errors", "base", "text", "nn", "models", "objectives"},
    "train": {"errors", "base", "text", "corpus", "nn", "models", "checkpoints", "objectives", "tasks"},
    "api": {"errors", "base", "text", "corpus", "nn", "models", "checkpoints", "objectives", "tasks", "train"},
    "cli": {"errors", "base", "text", "corpus", "nn", "models", "checkpoints", "objectives", "tasks", "train", "api"},
}
NO_TORCH = {"base", "text", "corpus"}
ALWAYS_LIGHT = {"__init__.py", "__main__.py", "errors.py"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            found.append((node.module or "", node.lineno))
            if (node.module or "").split(".")[0] == "bertsmith":  # a name may be a file
                found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_folder_is_in_the_table():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != PACKAGE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_folder_may(path: Path):
    folder = path.relative_to(PACKAGE).parts[0]
    allowed = MAY_IMPORT[folder] | {folder}
    for name, line in imports(path):
        if name.startswith("bertsmith."):
            assert name.split(".")[1] in allowed, f"{path}:{line}: {folder}/ may not import {name}"
        if folder in NO_TORCH:
            assert name.split(".")[0] not in ("torch", "transformers"), f"{path}:{line}: {folder}/ knows no torch"


def test_the_top_files_import_nothing_heavy_when_loaded():
    for name in ALWAYS_LIGHT:
        tree = ast.parse((PACKAGE / name).read_text())
        for node in tree.body:  # only what runs at import
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert (module or "").split(".")[0] not in ("torch", "numpy", "tokenizers", "safetensors"), (
                    f"{name} imports {module}"
                )


def test_no_cycles_between_files():
    graph = {}
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = {target for target, _ in imports(path) if target.startswith("bertsmith")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for target in graph.get(name, ()):
                if target in graph and target != "bertsmith":
                    visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
