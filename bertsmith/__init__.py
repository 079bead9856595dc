"""bertsmith: from raw text to an answering BERT.

>>> import bertsmith
>>> bertsmith.__all__
['BertsmithError', 'Model', 'Tokenizer', '__version__', 'load']

The names are resolved when first used, so that `import bertsmith` costs nothing and loads neither torch nor numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.api.load import load
    from bertsmith.api.model import Model
    from bertsmith.errors import BertsmithError
    from bertsmith.text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = ["BertsmithError", "Model", "Tokenizer", "__version__", "load"]

_HOMES = {
    "BertsmithError": "bertsmith.errors",
    "Model": "bertsmith.api.model",
    "Tokenizer": "bertsmith.text.tokenizer",
    "load": "bertsmith.api.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
