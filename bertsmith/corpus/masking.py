"""Masked-LM corruption of one instance (Devlin et al., 2018, section 3.1; create_pretraining_data.py).

What differs from the 2018 code: a random token is never a special piece (there any id), no special token is ever chosen
([UNK] was), whole words end at a special token (a cut word after [SEP] was joined to the word before it), and there is
always a target where there is anything to choose (a short instance of long words had none).
Whole-word masking here takes bits that say where a word starts, not ##, so it serves any script and vocabulary.

Dimension key: L tokens of the instance, C candidates, K targets, W words, V replacements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bertsmith.errors import ConfigError

BERT_RULE = (0.8, 0.1, 0.1)  # [MASK], a random piece, left as it is


def mask_tokens(
    ids: np.ndarray,
    maskable: np.ndarray,
    rng: np.random.Generator,
    *,
    mask_id: int,
    replacements: np.ndarray,
    rate: float = 0.15,
    most: int | None = None,
    rule: Sequence[float] = BERT_RULE,
    word_starts: np.ndarray | None = None,
    coin: str = "piece",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(corrupted ids [L], target positions [K] in order, target ids [K]); `ids` is left as it was.

    `maskable` [L] is False at special tokens. K is `target_count(len(ids), rate, most)`, or all candidates if they
    are fewer. `replacements` are the ids a random token may become: no special ones.

    With `word_starts` [L] (True where a word begins) whole words are chosen; one that would overflow K is passed over,
    so K may come out smaller. Where not one word fits, K pieces at the start of a word are taken. `coin` says whether
    the rule is drawn for each "piece", as in 2018, or once for each "word".

    >>> ids = np.array([2, 17, 18, 19, 3])
    >>> maskable = np.array([False, True, True, True, False])
    >>> rng = np.random.default_rng(0)
    >>> corrupted, positions, targets = mask_tokens(ids, maskable, rng, mask_id=4, replacements=np.arange(5, 30))
    >>> bool(targets[0] == ids[positions[0]]), len(positions)
    (True, 1)
    """
    check_masking(rate=rate, most=most, rule=rule, coin=coin)
    if coin == "word" and word_starts is None:
        raise ConfigError("coin='word' needs whole-word masking: pass word_starts, or take coin='piece'")
    count = target_count(len(ids), rate, most)
    candidates_C = maskable.nonzero()[0]
    if word_starts is None:
        if count < len(candidates_C):
            candidates_C = candidates_C[rng.random(len(candidates_C)).argpartition(count - 1)[:count]]
            candidates_C.sort()
        positions_K = candidates_C
        coins_K = rng.random(len(positions_K))
    else:
        positions_K, word_of_K = _whole_words(candidates_C, word_starts, rng, count)
        coins_K = rng.random(len(candidates_C))[word_of_K] if coin == "word" else rng.random(len(positions_K))
    targets_K = ids[positions_K]
    # Fine-tuning never shows [MASK], so a fifth of the targets do not become one: half of those turn into a random
    # piece, half stay. The model answers for all of them.
    corrupted_L = ids.copy()
    corrupted_L[positions_K[coins_K < rule[0]]] = mask_id
    random_K = positions_K[(coins_K >= rule[0]) & (coins_K < rule[0] + rule[1])]
    if len(random_K):
        if not len(replacements):
            raise ConfigError("no replacement ids for random tokens: pass some, or a rule whose second share is 0")
        corrupted_L[random_K] = replacements[rng.integers(0, len(replacements), len(random_K))]
    return corrupted_L, positions_K, targets_K


def target_count(tokens: int, rate: float, most: int | None = None) -> int:
    """How many of `tokens` (special ones count too, as in 2018) are to be predicted: the rate of them, at least one.

    >>> target_count(128, 0.15), target_count(3, 0.15), target_count(512, 0.15, 76)
    (19, 1, 76)
    """
    count = max(1, round(rate * tokens))
    return count if most is None else min(most, count)


def most_targets(length: int, rate: float) -> int:
    """Targets of an instance of `length` tokens at most: 20 of 128, 77 of 512 (2018 README: around rate x length).

    >>> most_targets(128, 0.15), most_targets(512, 0.15), most_targets(100, 0.15)
    (20, 77, 15)
    """
    return max(1, math.ceil(rate * length - 1e-9))  # 0.07 * 100 is 7.000000000000001 and means 7


def check_masking(*, rate: float, most: int | None, rule: Sequence[float], coin: str) -> None:
    """ConfigError if no masking can be done with these."""
    if not 0.0 < rate <= 1.0:
        raise ConfigError(f"mask rate {rate}: expected more than 0 and at most 1")
    if most is not None and most < 1:
        raise ConfigError(f"at most {most} targets: expected 1 or more, or None for no bound")
    if len(rule) != 3 or min(rule) < 0.0 or abs(sum(rule) - 1.0) > 1e-6:
        raise ConfigError(f"mask rule {tuple(rule)}: expected 3 shares (mask, random, keep) that sum to 1")
    if coin != "piece" and coin != "word":
        raise ConfigError(f"coin {coin!r}: expected 'piece' or 'word'")


def _whole_words(
    candidates_C: np.ndarray, word_starts: np.ndarray, rng: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions [K] of whole words drawn in random order up to `count` tokens, and the number of each one's word."""
    if not len(candidates_C):
        return candidates_C, candidates_C
    first_C = word_starts[candidates_C]
    first_C[0] = True
    first_C[1:] |= np.diff(candidates_C) != 1  # behind a special token a word begins, even one whose head was cut off
    word_of_C = np.cumsum(first_C) - 1
    sizes_W = np.bincount(word_of_C)
    chosen_W = np.zeros(len(sizes_W), dtype=bool)
    left = count
    order_W = rng.permutation(len(sizes_W))
    for word, size in zip(order_W.tolist(), sizes_W[order_W].tolist(), strict=True):
        if size <= left:
            chosen_W[word] = True
            left -= size
            if not left:
                break
    if left == count:  # a short instance of long words; without a target it would be read for nothing
        head_C = (word_of_C == order_W[0]).nonzero()[0][:count]
        return candidates_C[head_C], word_of_C[head_C]
    chosen_C = chosen_W[word_of_C]
    return candidates_C[chosen_C], word_of_C[chosen_C]
