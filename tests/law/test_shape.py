"""Files are chapters: no file over 600 lines, no function over 120; README's tree and commands are the real ones."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = [
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
]
PYTHON = sorted(
    path for path in TRACKED if path.suffix == ".py" and path.exists() and "learn" not in path.relative_to(ROOT).parts
)


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_lengths(path: Path):
    text = path.read_text()
    assert text.count("\n") <= 600, f"{path} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 120, f"{path}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize(
    "path", [p for p in PYTHON if "bertsmith" in p.relative_to(ROOT).parts], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_file_says_what_is_in_it(path: Path):
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} has no docstring"
    assert path.stem not in ("utils", "helpers", "common", "misc")


def test_the_readme_tree_is_the_real_one():
    """Every path of README's file tree exists, and every folder and file of the package is in it."""
    block = re.search(r"```\n(bertsmith/\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "README.md has no file tree"
    listed, folder = set(), Path()
    for line in block.group(1).splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        if indent == 0:
            folder = Path(name)
            listed.add(folder)
            continue
        folder = folder if indent > 2 else Path(folder.parts[0])
        names = [word for word in re.split(r"[\s,]+", line.strip()) if word]
        if indent == 2 and name.endswith("/"):
            folder = folder / name
            listed.add(folder)
            names = names[1:]
        for word in names:
            if word.endswith((".py", "/")):
                listed.add(folder / word)
            else:
                break  # the rest of the line is prose
    for path in listed:
        assert (ROOT / path).exists(), f"README's tree lists {path}"
    real = {
        p.relative_to(ROOT)
        for p in (ROOT / "bertsmith").rglob("*.py")
        if p.name != "__init__.py" or p.parent.name == "bertsmith"
    }
    missing = sorted(str(path) for path in real if path not in listed)
    assert not missing, f"README's tree lacks {missing}"


def test_the_tour_has_a_paragraph_for_every_file():
    tour = (ROOT / "docs" / "tour.md").read_text()
    for path in sorted((ROOT / "bertsmith").rglob("*.py")):
        name = str(path.relative_to(ROOT / "bertsmith"))
        if path.name != "__init__.py":
            assert f"`{name}`" in tour, f"docs/tour.md has no paragraph for {name}"


def test_the_makefile_has_what_the_readme_promises():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    promised = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= promised <= targets


def test_the_relative_links_of_the_docs_lead_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").glob("*.md"),
        ROOT / "bench" / "RESULTS.md",
    ]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
