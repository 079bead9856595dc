"""Which attention is fastest on this CPU: forward and backward of the middle part, the projections left out.

    python bench/attention.py [--rounds 7] [--bf16]

Rows: "equal" is 32 rows of 128 tokens, "ragged" as many with lengths between 16 and 128. Ways: "written out" is a
matrix product, softmax, dropout and a product in ordinary autograd; "own backward" is bertsmith's; "sdpa" is
torch's scaled_dot_product_attention over padded rows.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.nn import attention
from bertsmith.nn.rows import Rows

WIDTH, HEADS = 256, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bf16", action="store_true", help="in bfloat16 instead of float32")
    options = parser.parse_args()
    rounds, dtype = options.rounds, torch.bfloat16 if options.bf16 else torch.float32
    torch.manual_seed(0)
    ragged = sorted(torch.randint(16, 129, (32,)).tolist(), reverse=True)
    for name, lengths in (("equal", [128] * 32), ("ragged", ragged)):
        rows = Rows.of(lengths)
        for dropout in (0.0, 0.1):
            ways = {
                "sdpa, padded": lambda x, rows=rows, p=dropout: padded(x, rows, p, sdpa),
                "written out, padded": lambda x, rows=rows, p=dropout: padded(x, rows, p, written_out),
                "own backward, buckets": lambda x, rows=rows, p=dropout: own(x, rows, p),
                "bertsmith's choice": lambda x, rows=rows, p=dropout: attention.attend(x, rows, heads=HEADS, dropout=p),
            }
            for way, milliseconds in measured(ways, rows, rounds, dtype).items():
                print(f"{name:7} dropout {dropout}  {way:22} {milliseconds:7.1f} ms")


def measured(
    ways: dict[str, Callable[[Tensor], Tensor]], rows: Rows, rounds: int, dtype: torch.dtype
) -> dict[str, float]:
    """Medians over interleaved rounds, the first one not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    qkv_T3D = torch.randn(rows.total, 3 * WIDTH, dtype=dtype, requires_grad=True)
    grad_TD = torch.randn(rows.total, WIDTH, dtype=dtype)
    for _ in range(rounds + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            run(qkv_T3D).backward(grad_TD)
            seconds[way].append(time.perf_counter() - start)
    return {way: 1e3 * statistics.median(times[1:]) for way, times in seconds.items()}


def own(qkv_T3D: Tensor, rows: Rows, dropout: float) -> Tensor:
    """bertsmith's function for dropout, also where nothing is dropped."""
    return attention.attend(qkv_T3D, rows, heads=HEADS, dropout=dropout or 1e-9)


def padded(qkv_T3D: Tensor, rows: Rows, dropout: float, way: Callable[..., Tensor]) -> Tensor:
    lengths_R = torch.tensor(rows.lengths)
    keep_RL = torch.arange(rows.longest) < lengths_R[:, None]
    qkv_PX = qkv_T3D.new_zeros(rows.count * rows.longest, 3 * WIDTH)
    slots_T = keep_RL.flatten().nonzero()[:, 0]
    qkv_PX = qkv_T3D if rows.equal else qkv_PX.index_copy(0, slots_T, qkv_T3D)
    q, k, v = qkv_PX.view(rows.count, rows.longest, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    mixed = way(q, k, v, None if rows.equal else keep_RL[:, None, None, :], dropout)
    mixed_PD = mixed.transpose(1, 2).reshape(rows.count * rows.longest, WIDTH)
    return mixed_PD if rows.equal else mixed_PD.index_select(0, slots_T)


def sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=dropout)


def written_out(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    return functional.dropout(scores.softmax(-1), dropout) @ v


if __name__ == "__main__":
    main()
