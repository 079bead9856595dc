import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from bertsmith.models.bert import Bert, BertConfig, compile_encoder
from bertsmith.nn.layers import initialise
from bertsmith.nn.rows import lay_out

LENGTHS = ([7, 3], [20, 20, 1], [5], [9, 2, 2, 2], [20] * 6)


def make(pre_norm: bool, dropout: float) -> Bert:
    config = BertConfig(
        vocab_size=50, width=16, depth=3, heads=2, ffn_width=32, max_length=20, dropout=dropout,
        attention_dropout=dropout, pre_norm=pre_norm,
    )  # fmt: skip
    model = Bert(config)
    initialise(model, 1, std=0.2)
    return model


@pytest.mark.parametrize("pre_norm", [False, True])
def test_compiled_parts_are_traced_once_for_any_number_of_tokens(pre_norm, monkeypatch):
    """With a backend that only counts; the real one is in the slow test."""
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, dynamic: compiled(part, dynamic=dynamic, backend=counter))
    torch._dynamo.reset()
    model, eager = compile_encoder(make(pre_norm, 0.1)).train(), make(pre_norm, 0.1).train()
    counts = []
    for seed, lengths in enumerate(LENGTHS):
        ids_T, rows = lay_out([list(range(length)) for length in lengths])
        torch.manual_seed(seed)
        hidden = model(ids_T, rows)
        torch.manual_seed(seed)
        torch.testing.assert_close(hidden, eager(ids_T, rows), atol=1e-5, rtol=0)
        counts.append(counter.frame_count)
    assert counts == [2] * len(LENGTHS)  # before and after attention, for all layers and all batches
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_compiled_equals_eager_and_never_recompiles(dropout):
    torch._dynamo.reset()
    counters.clear()
    compiled, eager = compile_encoder(make(False, dropout)).train(), make(False, dropout).train()
    graphs = []
    for seed, lengths in enumerate(LENGTHS):
        ids_T, rows = lay_out([list(range(length)) for length in lengths])
        hidden = []
        for model in (compiled, eager):
            model.zero_grad()
            torch.manual_seed(seed)
            hidden.append(model(ids_T, rows))
            (hidden[-1] * torch.linspace(-1, 1, hidden[-1].numel()).view_as(hidden[-1])).mean().backward()
        torch.testing.assert_close(*hidden, atol=1e-5, rtol=0)
        for (name, a), (_, b) in zip(compiled.named_parameters(), eager.named_parameters(), strict=True):
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=0, msg=name)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [graphs[0]] * len(LENGTHS)
    torch._dynamo.reset()
