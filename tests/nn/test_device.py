import pytest
import torch

from bertsmith.errors import ConfigError
from bertsmith.nn.device import Precision, autocast, choose_device, choose_precision, native_bf16

CPU = torch.device("cpu")


def test_devices():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match=r"device 'tpu' is none of auto, cpu, cuda"):
        choose_device("tpu")


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == CPU
    with pytest.raises(ConfigError, match="sees no GPU; take cpu"):
        choose_device("cuda:0")


def test_bf16_only_where_the_processor_has_it():
    assert native_bf16("flags : avx2 avx512f avx512_bf16")
    assert native_bf16("amx_bf16")
    assert not native_bf16("avx2 avx512f")
    assert choose_precision("auto", CPU).name == ("bf16" if native_bf16() else "fp32")
    assert choose_precision("auto", CPU).reason
    assert choose_precision("bf16", CPU) == Precision("bf16", "as asked for")
    with pytest.raises(ConfigError, match="precision 'fp16' is none of"):
        choose_precision("fp16", CPU)


def test_autocast():
    layer = torch.nn.Linear(2, 2)
    for name, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with autocast(CPU, Precision(name, "a test")):
            assert layer(torch.ones(1, 2)).dtype == kind
