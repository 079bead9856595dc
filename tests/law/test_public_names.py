"""The public surface: which names there are, and that asking for the package costs nothing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bertsmith

ROOT = Path(__file__).parents[2]
PUBLIC = ["BertsmithError", "Model", "Tokenizer", "__version__", "load"]


def test_the_names_are_these_sorted_and_all_there():
    assert bertsmith.__all__ == PUBLIC == sorted(PUBLIC) == dir(bertsmith)
    for name in PUBLIC:
        assert getattr(bertsmith, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_those_that_are():
    with pytest.raises(AttributeError, match=r"'Trainer'.*load"):
        _ = bertsmith.Trainer


def test_the_version_is_the_one_of_the_project():
    assert bertsmith.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'tokenizers', 'safetensors', 'transformers', 'typer', 'rich'}"
    code = f"import sys, bertsmith; dir(bertsmith); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_and_corpus_know_no_torch():
    code = (
        "import sys, pkgutil, importlib, bertsmith.text, bertsmith.corpus\n"
        "for package in (bertsmith.text, bertsmith.corpus):\n"
        "    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
