"""JSON that somebody edited: something in it replaced by something else."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JUNK = [None, -1, 0.5, True, "x", [], {}, [1], {"a": 1}, [[]], 10**30]


def edited(path: Path, many: int) -> Iterator[str]:
    """At most `many` different contents for the file at `path`, the same ones every time; it ends as it began."""
    content = json.loads(path.read_text())
    cases = [(place, value) for place in _places(content) for value in JUNK]
    before = path.read_bytes()
    for place, value in random.Random(path.name).sample(cases, min(len(cases), many)):
        path.write_text(json.dumps(_changed(content, place, value)))
        yield f"{place} = {value!r}"
    path.write_bytes(before)


def _places(node: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _places(node[key], (*place, key))


def _changed(node: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copied = node.copy()
    copied[place[0]] = _changed(node[place[0]], place[1:], value)
    return copied
