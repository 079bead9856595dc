"""One named, counter-based random stream per use.

Nothing here is ambient: whoever needs randomness names the seed and the use, and gets the same numbers on every
machine, in whatever order the uses come. So a run resumes without saving any generator: step 700's dropout is
`number(seed, "dropout", 700, 0)`, whether or not steps 1 to 699 happened in this process.
"""

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """A Philox generator for one use, e.g. `stream(seed, "pairs", epoch, shard)`."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, names), "little")))


def number(seed: int, *names: str | int) -> int:
    """A number in 0..2**63-1 for one use; for `torch.manual_seed` and `torch.Generator`."""
    return int.from_bytes(_digest(seed, names)[:8], "little") >> 1


def _digest(seed: int, names: tuple[str | int, ...]) -> bytes:
    # The type is part of the key and every part has its length before it: ("a", 1), ("a1",) and ("a", "1") differ.
    parts = [f"{type(part).__name__}:{part}".encode() for part in (int(seed), *names)]
    return hashlib.blake2b(b"".join(len(part).to_bytes(4, "little") + part for part in parts), digest_size=16).digest()
