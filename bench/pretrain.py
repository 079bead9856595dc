"""Tokens a second of pre-training: bertsmith beside transformers' BertForMaskedLM, the whole step, in turns in one run.

    python bench/pretrain.py --size mini [--batch 32] [--steps 9] [--precision bf16]

A step is forward, backward, clipping at 1.0 and AdamW, fused, on rows of 128 tokens, 15 % of
them masked; both sides see the same tokens, the same targets and the same dropout (0.1, attention too). transformers
gets [B, L] ids and labels and makes scores for every position, as it does; bertsmith gets tokens end to end. Each side
runs eagerly and compiled, in float32 and, where the processor computes in it, in bf16 autocast, or in the given
precisions; the ratio quoted is best to best.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from record import RECORDS, write_record
from torch import nn

from bertsmith.models.bert import Bert, compile_encoder
from bertsmith.models.catalog import config_for
from bertsmith.nn.device import Precision, autocast, choose_precision
from bertsmith.nn.rows import Rows
from bertsmith.objectives.batch import PretrainBatch
from bertsmith.objectives.pretraining import fresh_pretraining

LENGTH, MASKED, LEARNING_RATE = 128, 0.15, 1e-4
CPU = torch.device("cpu")
Step = Callable[[int], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--steps", type=int, default=9, help="steps of each side that are timed, after two that are not"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled variants out")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"])
    options = parser.parse_args()
    native = ["fp32", "bf16"] if choose_precision("auto", CPU).name == "bf16" else ["fp32"]
    precisions = options.precision or native
    sides: dict[str, Step] = {}
    for precision in precisions:
        for compiled in (False,) if options.no_compile else (False, True):
            kind = f"{precision} {'compiled' if compiled else 'eager'}"
            sides[f"bertsmith {kind}"] = ours(options.size, options.batch, precision, compiled)
            sides[f"transformers {kind}"] = theirs(options.size, options.batch, precision, compiled)
    log: list[str] = []
    figures = timed(sides, options, log)
    best = {
        side: max(rate for name, rate in figures.items() if name.startswith(side))
        for side in ("bertsmith", "transformers")
    }
    name = f"pretrain_{options.size}" + ("" if options.batch == 32 else f"_b{options.batch}")
    name += "_bf16" if "bf16" in precisions else ""
    ratio = best["bertsmith"] / best["transformers"]
    path = write_record(
        name, size=options.size, batch=options.batch, length=LENGTH, n=options.steps, tokens_per_second=figures,
        best=best, ratio=round(ratio, 3), seconds=log_seconds(log), transformers=transformers.__version__,
    )  # fmt: skip
    (RECORDS / f"{name}.log").write_text("\n".join(log) + "\n")
    print(f"best to best: {ratio:.2f} times; {path}")


def timed(sides: dict[str, Step], options: argparse.Namespace, log: list[str]) -> dict[str, float]:
    """Median tokens a second of each side; the sides take turns, step by step."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.steps + 2):
        for name, step in sides.items():
            start = time.perf_counter()
            loss = step(number)
            took = time.perf_counter() - start
            log.append(
                json.dumps({"step": number - 2, "side": name, "seconds": round(took, 4), "loss": round(loss, 4)})
            )
            print(log[-1], flush=True)
            if number >= 2:  # the first steps compile and make the optimizer's state
                seconds[name].append(took)
    return {name: round(options.batch * LENGTH / statistics.median(times)) for name, times in seconds.items()}


def log_seconds(log: list[str]) -> dict[str, dict[str, float]]:
    """Spread of each side's steps."""
    times: dict[str, list[float]] = {}
    for entry in map(json.loads, log):
        if entry["step"] >= 0:
            times.setdefault(entry["side"], []).append(entry["seconds"])
    return {side: {"min": min(t), "median": statistics.median(t), "max": max(t)} for side, t in times.items()}


def random_batch(pieces: int, batch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [B, L], and labels [B, L] with -100 where nothing is to be predicted."""
    generator = torch.Generator().manual_seed(number)
    ids_BL = torch.randint(5, pieces, (batch, LENGTH), generator=generator)
    order_BL = torch.rand(batch, LENGTH, generator=generator).argsort(1)
    labels_BL = torch.where(order_BL < round(MASKED * LENGTH), ids_BL, -100)
    return torch.where(labels_BL >= 0, 4, ids_BL), labels_BL


def stepper(model: nn.Module, loss_of: Callable[[int], torch.Tensor], precision: str) -> Step:
    # torch's fused AdamW: one pass over the weights, on both sides.
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    model.train()

    def step(number: int) -> float:
        torch.manual_seed(number)
        optimizer.zero_grad(set_to_none=True)
        with autocast(CPU, Precision(precision, "asked for")):
            loss = loss_of(number)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def ours(size: str, batch: int, precision: str, compiled: bool) -> Step:
    config = config_for("bert", size)
    model = fresh_pretraining(Bert(config), nsp=False, seed=0)
    if compiled:
        compile_encoder(model.encoder)
    rows = Rows.of([LENGTH] * batch)

    def loss_of(number: int) -> torch.Tensor:
        ids_BL, labels_BL = random_batch(config.vocab_size, batch, number)
        labels_T = labels_BL.flatten()
        positions_K = (labels_T >= 0).nonzero()[:, 0]
        segments_T = torch.zeros_like(labels_T)
        fresh = Rows.of(rows.lengths)  # as in training: its tables are made anew for every batch
        [term] = model(PretrainBatch(ids_BL.flatten(), fresh, segments_T, positions_K, labels_T[positions_K], None))
        return term.sum / term.count

    return stepper(model, loss_of, precision)


def theirs(size: str, batch: int, precision: str, compiled: bool) -> Step:
    config = config_for("bert", size)
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size, "hidden_size": config.width, "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn_width,
        "hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_dropout,
    }  # fmt: skip
    model = transformers.BertForMaskedLM(transformers.BertConfig(**settings, attn_implementation="sdpa"))
    forward = torch.compile(model) if compiled else model
    mask_BL = torch.ones(batch, LENGTH, dtype=torch.int64)
    segments_BL = torch.zeros_like(mask_BL)

    def loss_of(number: int) -> torch.Tensor:
        ids_BL, labels_BL = random_batch(config.vocab_size, batch, number)
        return forward(ids_BL, attention_mask=mask_BL, token_type_ids=segments_BL, labels=labels_BL).loss

    return stepper(model, loss_of, precision)


if __name__ == "__main__":
    main()
