"""Everything a pre-training run needs to go on, as one literal, saved and restored side by side.

A state is a folder run/state/step-000000120 with weights.safetensors, optimizer.safetensors and state.json, which holds
the rest and the checksums of the two. It is written aside, flushed and renamed; the newest one that is whole wins.
There are no generators in it: instances, masks and dropout are functions of the seed and the place in the data.
"""

import errno
import json
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bertsmith.base.files import explained, fresh_folder, sha256_of
from bertsmith.base.log import Log
from bertsmith.corpus.instances import Position
from bertsmith.errors import FileError, StateError
from bertsmith.train.optimizers import Optimizer

VERSION = 2
WEIGHTS, OPTIMIZER, REST = "weights.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"step-(\d{9})")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What must stay the same for a resumed run to be bit-equal."""

    torch: str
    numpy: str  # whose generators draw instances, masks and, on a CPU, dropout
    threads: int
    processor: str
    device: str
    precision: str
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class RunState:
    """How far a run is, what it stands on, and where; all of it small enough for JSON."""

    step: int  # the last one taken
    position: Position  # where the next step's instances begin
    minutes: float  # of training, over all processes that ever worked on this run
    tokens: int  # seen so far
    settings: dict[str, Any]  # the recipe
    config: dict[str, Any]  # the encoder's
    corpus: str  # fingerprint
    tokenizer: str  # fingerprint
    machine: Machine


def this_machine(device: torch.device, precision: str) -> Machine:
    """The machine as a state remembers it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return Machine(
        torch=torch.__version__,
        numpy=np.__version__,
        threads=torch.get_num_threads(),
        processor=processor,
        device=name,
        precision=precision,
    )


def save_state(run: Path, model: nn.Module, optimizer: Optimizer, reached: RunState, *, keep: int) -> Path:
    """Writes the state of `reached.step`, then removes all but the `keep` newest. On a FileError they stay."""
    folder = run / "state" / f"step-{reached.step:09d}"
    with fresh_folder(folder) as aside:
        _write(aside / WEIGHTS, weights_of(model))
        _write(aside / OPTIMIZER, optimizer.state_dict())
        rest = {
            "version": VERSION,
            **asdict(reached),
            "checksums": {name: sha256_of(aside / name) for name in (WEIGHTS, OPTIMIZER)},
        }
        rest["checksum"] = _own_checksum(rest)
        with explained(folder):
            (aside / REST).write_text(json.dumps(rest, indent=1))
    states = _states(run)
    upto = [old for step, old in states if step <= reached.step]
    # States ahead of this one are broken ones that a resumed run passed over.
    for old in [*upto[:-keep], *(old for step, old in states if step > reached.step)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def newest_state(run: Path, log: Log) -> tuple[Path, RunState] | None:
    """The newest whole state of a run, or None if it has none; a broken one is named in a warning and passed over.

    Raises StateError if there are states and none is whole: to begin again would cost what may still be saved by hand.
    Also removes what a killed process left half written.
    """
    for rest in [*(run / "state").glob(".*.aside"), *(run / "state").glob(".*.old")]:
        shutil.rmtree(rest, ignore_errors=True)
    states = _states(run)
    for _, folder in reversed(states):
        try:
            return folder, _read(folder)
        except StateError as error:
            log.warn(f"{error}; looking for a state before it")
    if states:
        raise StateError(
            f"{run}: none of its {len(states)} states can be read; to begin again, move {run / 'state'} away"
        )
    return None


def restore_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Puts the weights and the optimizer's memory of a state that `newest_state` found whole into place."""
    weights, here = load_file(folder / WEIGHTS), weights_of(model)
    odd = sorted(weights.keys() ^ here.keys())
    if odd:
        raise StateError(f"{folder}: its weights are not this model's: {', '.join(odd[:5])} on one side only")
    with torch.no_grad():
        for name, tensor in here.items():
            if tensor.shape != weights[name].shape:
                raise StateError(
                    f"{folder}: {name} is {tuple(weights[name].shape)}, this model's {tuple(tensor.shape)}"
                )
            tensor.copy_(weights[name])
    optimizer.load_state_dict(load_file(folder / OPTIMIZER))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name, each once: a tied decoder is the embedding table."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    return {**{name: parameter.data for name, parameter in model.named_parameters()}, **buffers}


def machine_differences(old: Machine, new: Machine) -> list[str]:
    """One line for each thing that keeps a resumed run from being bit-equal."""
    return [
        f"{name} was {before}, is {after}"
        for (name, before), after in zip(asdict(old).items(), asdict(new).values(), strict=True)
        if before != after
    ]


def _states(run: Path) -> list[tuple[int, Path]]:
    found = [(NAME.fullmatch(folder.name), folder) for folder in (run / "state").glob("step-*")]
    return sorted((int(match[1]), folder) for match, folder in found if match)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # Into memory first: written by safetensors itself, a full disk would be an error without errno.
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    with explained(path):
        path.write_bytes(data)


def _read(folder: Path) -> RunState:
    try:
        rest = json.loads((folder / REST).read_text())
        if rest["version"] != VERSION:
            raise StateError(f"{folder}: a state of version {rest['version']}; this bertsmith reads {VERSION}")
        if rest["checksum"] != _own_checksum(rest):
            raise StateError(f"{folder / REST}: does not match its checksum")
        for name, checksum in rest["checksums"].items():
            if sha256_of(folder / name) != checksum:
                raise StateError(f"{folder / name}: does not match its checksum: truncated or damaged")
        values = {
            name: rest[name] for name in ("step", "minutes", "tokens", "settings", "config", "corpus", "tokenizer")
        }
        return RunState(**values, position=Position(**rest["position"]), machine=Machine(**rest["machine"]))
    except OSError as error:
        if error.errno != errno.ENOENT:  # a disk that cannot be read now may be readable later: nothing to pass over
            raise
        raise StateError(f"{folder}: not a whole state ({error})") from error
    except (FileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{folder}: not a whole state ({error})") from error


def _own_checksum(rest: Mapping[str, Any]) -> str:
    return sha256_of(
        json.dumps({key: value for key, value in rest.items() if key != "checksum"}, sort_keys=True).encode()
    )
