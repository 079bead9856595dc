"""The examples in docstrings say what really comes out."""

import doctest
import importlib
import pkgutil

import pytest

import bertsmith

MODULES = [found.name for found in pkgutil.walk_packages(bertsmith.__path__, "bertsmith.")]
MODULES.remove("bertsmith.__main__")


@pytest.mark.parametrize("module", MODULES)
def test_examples_are_true(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
