"""Where and in which precision the arithmetic runs: chosen once, at the entry point, and said with the reason."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from bertsmith.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Precision:
    """`name` is "fp32" or "bf16" (autocast: weights stay float32); `reason` is for people."""

    name: str
    reason: str


def choose_device(name: str = "auto") -> torch.device:
    """The device of that name; "auto" takes a GPU if torch sees one."""
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise ConfigError(f"device {name!r} is none of {', '.join(DEVICES)} (or cuda:0, cuda:1, ...)")
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: this torch ({torch.__version__}) sees no GPU; take cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r}: expected cpu, cuda, cuda:0, cuda:1, ...") from error


def choose_precision(name: str, device: torch.device) -> Precision:
    """bf16 only where the hardware computes in it: elsewhere it is emulated, up to a hundred times slower than fp32."""
    if name not in PRECISIONS:
        raise ConfigError(f"precision {name!r} is none of {', '.join(PRECISIONS)}")
    if name != "auto":
        return Precision(name, "as asked for")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", "the GPU computes in bf16")
        return Precision("fp32", "the GPU has no bf16")
    if device.type == "cpu" and native_bf16():
        return Precision("bf16", "the processor computes in bf16")
    return Precision("fp32", "the processor has no bf16 arithmetic")


def native_bf16(flags: str | None = None) -> bool:
    """Whether the processor multiplies bf16 numbers itself (avx512_bf16, amx_bf16, or bf16 on ARM)."""
    if flags is None:
        cpuinfo = Path("/proc/cpuinfo")
        flags = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[object]:
    """The block's matrix products run in `precision`; with fp32 nothing changes."""
    if precision.name == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
