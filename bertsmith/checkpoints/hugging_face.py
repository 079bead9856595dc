"""config.json in Hugging Face's schema, both ways, and the two kinds of weight files, whole or split.

A setting that would change what the model computes and that we do not have (another activation, relative positions, a
decoder) is refused; what only concerns their library is passed over.
"""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from bertsmith.base.config import from_mapping, nearest
from bertsmith.base.files import check_readable, explained, read_text
from bertsmith.checkpoints.names import TABLES
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.models.bert import BertConfig

# ours -> Hugging Face's, and their default where a config.json may leave it out
KEYS: Mapping[str, tuple[str, int | float | None]] = {
    "vocab_size": ("vocab_size", None),
    "width": ("hidden_size", None),
    "depth": ("num_hidden_layers", None),
    "heads": ("num_attention_heads", None),
    "ffn_width": ("intermediate_size", None),
    "max_length": ("max_position_embeddings", None),
    "segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "norm_eps": ("layer_norm_eps", 1e-12),
}
# Only these values mean what our encoder does.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_word_embeddings": (True,),
}
ARCHITECTURES = {"bert": "Bert", "megatron-bert": "MegatronBert"}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_HEADER = 100_000_000  # bytes; the format's own limit


def model_type_of(config: BertConfig) -> str:
    return "megatron-bert" if config.pre_norm else "bert"


def architecture_of(config: BertConfig, parts: Sequence[str]) -> str:
    """The Hugging Face class that has all of these parts, or the nearest."""
    kind = ARCHITECTURES[model_type_of(config)]
    if "label" in parts:
        return f"{kind}ForSequenceClassification"
    if "mlm" in parts:
        return f"{kind}ForPreTraining" if "nsp" in parts else f"{kind}ForMaskedLM"
    return f"{kind}ForNextSentencePrediction" if "nsp" in parts else f"{kind}Model"


def config_to_json(
    config: BertConfig, *, parts: Sequence[str], labels: Sequence[str] | None, pad_id: int
) -> dict[str, Any]:
    """The mapping that goes into config.json."""
    mapping: dict[str, Any] = {"architectures": [architecture_of(config, parts)], "model_type": model_type_of(config)}
    mapping |= {theirs: getattr(config, ours) for ours, (theirs, _) in KEYS.items()}
    mapping |= {
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "pad_token_id": pad_id,
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    if labels is not None:
        mapping["id2label"] = {str(number): name for number, name in enumerate(labels)}
        mapping["label2id"] = {name: number for number, name in enumerate(labels)}
        mapping["problem_type"] = "single_label_classification"
    return mapping


def config_from_json(mapping: Mapping[str, Any], *, where: str) -> BertConfig:
    """Our configuration from a config.json's content. CheckpointError for another family or what we cannot compute."""
    kind = mapping.get("model_type", "bert" if "hidden_size" in mapping else None)  # the oldest folders do not say
    if not isinstance(kind, str) or kind not in TABLES:
        raise CheckpointError(f"{where}: model_type is {kind!r}; bertsmith reads {', '.join(TABLES)}")
    for key, allowed in ONLY.items():
        if mapping.get(key, allowed[0]) not in allowed:
            raise CheckpointError(f"{where}: {key} is {mapping[key]!r}; only {allowed[0]!r} can be computed here")
    values: dict[str, Any] = {"pre_norm": kind == "megatron-bert"}
    for ours, (theirs, default) in KEYS.items():
        value = mapping.get(theirs, default)
        if value is None:
            near = nearest(theirs, [key for key in mapping if key not in dict(KEYS.values())])
            raise CheckpointError(
                f"{where}: {theirs} is missing" + (f"; is it what {near!r} should be called?" if near else "")
            )
        values[ours] = value
    try:
        return from_mapping(BertConfig, values, where=where)
    except ConfigError as error:
        text = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise CheckpointError(text) from error


def labels_from_json(mapping: Mapping[str, Any], *, where: str) -> list[str] | None:
    """Label names in order, or None if the folder names none."""
    names = mapping.get("id2label")
    if not names:
        return None
    try:
        ordered = {int(number): str(name) for number, name in names.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{where}: id2label should map 0, 1, ... to names, found {names!r}") from error
    if sorted(ordered) != list(range(len(ordered))):
        raise CheckpointError(
            f"{where}: id2label should have the numbers 0 to {len(ordered) - 1}, found {sorted(ordered)}"
        )
    return [ordered[number] for number in range(len(ordered))]


def read_json(path: Path) -> dict[str, Any]:
    try:
        mapping = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    if not isinstance(mapping, dict):
        raise CheckpointError(f"{path}: an object was expected, found {type(mapping).__name__}")
    return mapping


@dataclass(frozen=True)
class Weights:
    """A weight file, or several and their index, looked into but not read: shapes by name, and `open()`, a context
    that gives a reader of one tensor."""

    path: Path
    size: int  # bytes
    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]
    open: Callable[[], AbstractContextManager[Callable[[str], Tensor]]]


class _SafeReader:
    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> Callable[[str], Tensor]:
        self._file = safetensors.safe_open(self.path, framework="pt", device="cpu")
        return self._file.__enter__().get_tensor

    def __exit__(self, *exception: Any) -> None:
        self._file.__exit__(*exception)


class _DictReader:
    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors

    def __enter__(self) -> Callable[[str], Tensor]:
        return self.tensors.__getitem__

    def __exit__(self, *exception: Any) -> None:
        pass


class _PartsReader:
    def __init__(self, parts: Mapping[str, Weights], named: Mapping[str, str]):
        self.parts = parts
        self.named = named

    def __enter__(self) -> Callable[[str], Tensor]:
        with ExitStack() as stack:
            readers = {file: stack.enter_context(part.open()) for file, part in self.parts.items()}
            self._stack = stack.pop_all()
        return lambda name: readers[self.named[name]](name)

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()


def find_weights(folder: Path) -> Weights:
    """The folder's weights, in one file or split over several, checked as far as that goes without reading them."""
    for name in WEIGHT_FILES:
        if (folder / name).exists():
            return _one_file(folder / name)
        if (folder / f"{name}.index.json").exists():
            return _several_files(folder / f"{name}.index.json")
    raise CheckpointError(f"{folder}: no weights; {' or '.join(WEIGHT_FILES)} was expected")


def _one_file(path: Path) -> Weights:
    check_readable(path)
    return _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)


def _several_files(index: Path) -> Weights:
    """As Hugging Face splits them: "weight_map" gives the file of every tensor, and must be right about them."""
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(
        isinstance(file, str)
        and file.isprintable()
        and Path(file).name == file
        and Path(file).suffix in (".safetensors", ".bin")
        for file in named.values()
    ):
        raise CheckpointError(f'{index}: "weight_map" should give a weight file of this folder for every tensor')
    parts = {file: _one_file(index.parent / file) for file in sorted(set(named.values()))}
    held = {name: file for file, part in parts.items() for name in part.shapes}
    wrong = sorted(name for name in {*named, *held} if named.get(name) != held.get(name))
    if wrong:
        listed = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        raise CheckpointError(f"{index}: not what its files hold: {listed}; copy or download them all again")
    shapes = {name: parts[file].shapes[name] for name, file in named.items()}
    types = {name: parts[file].types[name] for name, file in named.items()}
    size = sum(part.size for part in parts.values())
    return Weights(index, size, shapes, types, lambda: _PartsReader(parts, named))


def _safetensors(path: Path) -> Weights:
    with explained(path), open(path, "rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise CheckpointError(f"{path}: {size:,} bytes, not even its header is whole; copy or download it again")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            shapes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
            types = {name: str(entry["dtype"]) for name, entry in tensors.items()}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{path}: the header is no safetensors header; copy or download it again") from error
    expected = 8 + length + end
    if size != expected:
        what = "it was cut off" if size < expected else "there is more in it than it says"
        raise CheckpointError(f"{path}: {size:,} bytes, by its header {expected:,}: {what}; copy or download it again")
    return Weights(path, size, shapes, types, lambda: _SafeReader(path))


def _pickled(path: Path) -> Weights:
    try:
        tensors = _load_pickled(path)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        UnicodeDecodeError,
    ) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path}: not a readable weight file, or one that holds more than tensors ({reason})"
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CheckpointError(f"{path}: a table of tensors by name was expected")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    return Weights(path, path.stat().st_size, shapes, types, lambda: _DictReader(tensors))


def _load_pickled(path: Path) -> Any:
    with explained(path), open(path, "rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    # weights_only: nothing but tensors is ever unpickled. Mapped where the format allows, so that looking costs no
    # memory.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
