"""Masking: exact counts, what may be touched, and chance (chi-square with fixed seeds)."""

from collections import Counter

import numpy as np
import pytest

from bertsmith.corpus.masking import mask_tokens, most_targets, target_count
from bertsmith.errors import ConfigError

MASK = 4
REPLACEMENTS = np.arange(5, 105)


def quantile(freedom):
    """The 99.9 % point of chi-square (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.09 * part**0.5) ** 3


def chi_square(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(((observed - expected) ** 2 / expected).sum())


def instance(length, seed=0):
    """Ids above all replacements, so that a replaced token shows, between special ones."""
    ids = np.random.default_rng(seed).integers(200, 300, length)
    maskable = np.ones(length, dtype=bool)
    for position, special in ((0, 2), (length // 2, 3), (length - 1, 3)):
        ids[position], maskable[position] = special, False
    return ids, maskable


def words(length, maskable, seed=0):
    starts = np.random.default_rng(seed).random(length) < 0.6
    return starts | ~maskable


def mask(ids, maskable, seed=0, **settings):
    rng = np.random.Generator(np.random.Philox(key=seed))
    return mask_tokens(ids, maskable, rng, mask_id=MASK, replacements=REPLACEMENTS, **settings)


@pytest.mark.parametrize("length", [4, 5, 9, 10, 16, 17, 63, 128, 511, 512])
def test_how_many(length):
    ids, maskable = instance(length)
    most = most_targets(512, 0.15)
    _, positions, targets = mask(ids, maskable, most=most)
    assert len(positions) == len(targets) == min(most, max(1, round(0.15 * length)), maskable.sum())


def test_the_upper_ends_of_2018():
    assert (most_targets(128, 0.15), most_targets(512, 0.15)) == (20, 77)
    assert target_count(128, 0.15, 20) == 19
    assert target_count(10, 0.15) == 2
    assert target_count(30, 0.15) == 4
    assert target_count(512, 0.15, 77) == 77
    assert target_count(2, 0.15) == 1
    ids, maskable = instance(128)
    assert len(mask(ids, maskable, most=5)[1]) == 5
    assert len(mask(ids, maskable, rate=1.0)[1]) == maskable.sum()


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_touched(whole):
    for seed in range(50):
        ids, maskable = instance(60, seed)
        before = ids.copy()
        starts = words(60, maskable, seed) if whole else None
        corrupted, positions, targets = mask(ids, maskable, seed, word_starts=starts)
        assert np.array_equal(ids, before)
        assert maskable[positions].all()
        assert (np.diff(positions) > 0).all()
        assert np.array_equal(targets, ids[positions])
        elsewhere = np.setdiff1d(np.arange(60), positions)
        assert np.array_equal(corrupted[elsewhere], ids[elsewhere])
        changed = corrupted[positions] != targets
        assert np.isin(corrupted[positions][changed], [MASK, *REPLACEMENTS]).all()


def test_nothing_maskable_gives_no_targets():
    ids = np.array([2, 1, 1, 3])
    for starts in (None, np.ones(4, dtype=bool)):
        corrupted, positions, targets = mask(ids, np.zeros(4, dtype=bool), word_starts=starts)
        assert np.array_equal(corrupted, ids)
        assert len(positions) == len(targets) == 0


def outcomes(draws, length=128, **settings):
    """(masked, replaced, kept) counts, hits of each position, hits of each replacement."""
    ids, maskable = instance(length)
    kinds, where, replaced = np.zeros(3), np.zeros(length), Counter()
    rng = np.random.Generator(np.random.Philox(key=11))
    for _ in range(draws):
        corrupted, positions, targets = mask_tokens(
            ids, maskable, rng, mask_id=MASK, replacements=REPLACEMENTS, **settings
        )
        where[positions] += 1
        now = corrupted[positions]
        kinds += [(now == MASK).sum(), ((now != MASK) & (now != targets)).sum(), (now == targets).sum()]
        replaced.update(now[(now != MASK) & (now != targets)].tolist())
    return kinds, where[maskable], replaced


@pytest.mark.parametrize("rule", [(0.8, 0.1, 0.1), (0.5, 0.2, 0.3)])
def test_shares_of_the_rule(rule):
    kinds, where, replaced = outcomes(3_000, rule=rule)
    assert chi_square(kinds, kinds.sum() * np.array(rule)) < quantile(2)
    # Positions are drawn without replacement, which makes the statistic smaller by the share not drawn.
    assert chi_square(where, [where.mean()] * len(where)) < quantile(len(where) - 1)
    assert chi_square(where, [where.mean()] * len(where)) > 0.5 * len(where)
    assert set(replaced) == set(REPLACEMENTS.tolist())
    counts = list(replaced.values())
    assert chi_square(counts, [np.mean(counts)] * 100) < quantile(99)


def test_one_sided_rules():
    ids, maskable = instance(128)
    corrupted, positions, _ = mask(ids, maskable, rule=(1.0, 0.0, 0.0))
    assert (corrupted[positions] == MASK).all()
    corrupted, positions, _ = mask(ids, maskable, rule=(0.0, 1.0, 0.0))
    assert np.isin(corrupted[positions], REPLACEMENTS).all()
    corrupted, positions, _ = mask(ids, maskable, rule=(0.0, 0.0, 1.0))
    assert np.array_equal(corrupted, ids)
    assert len(positions) == 19


def as_2018(ids, maskable, starts, order, count):
    """The whole-word loop of 2018 on words in the given order."""
    groups = []
    for position in np.flatnonzero(maskable).tolist():
        if groups and not starts[position] and maskable[position - 1]:
            groups[-1].append(position)
        else:
            groups.append([position])
    chosen = []
    for number in order(len(groups)):
        if len(chosen) >= count:
            break
        if len(chosen) + len(groups[number]) <= count:
            chosen += groups[number]
    return groups, sorted(chosen)


@pytest.mark.parametrize("length", [5, 12, 64, 128])
def test_whole_words_as_in_2018(length):
    for seed in range(60):
        ids, maskable = instance(length, seed)
        starts = words(length, maskable, seed)
        _, positions, _ = mask(ids, maskable, seed, word_starts=starts, most=20)
        same = np.random.Generator(np.random.Philox(key=seed))
        groups, chosen = as_2018(ids, maskable, starts, same.permutation, target_count(length, 0.15, 20))
        if not chosen:  # 2018 leaves such an instance without a target
            assert any(positions.tolist() == group[: len(positions)] for group in groups)
            assert len(positions) == target_count(length, 0.15, 20)
            continue
        assert positions.tolist() == chosen
        assert all(set(group) <= set(chosen) or not set(group) & set(chosen) for group in groups)


def test_a_word_without_its_head_after_a_special_token_is_a_word():
    ids = np.array([2, 200, 201, 3, 202, 203, 3])
    maskable = np.array([0, 1, 1, 0, 1, 1, 0], dtype=bool)
    starts = np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)  # B begins in the middle of a word
    seen = {tuple(mask(ids, maskable, seed, word_starts=starts, rate=0.3)[1].tolist()) for seed in range(40)}
    assert seen == {(1, 2), (4, 5)}


def test_a_word_that_overflows_is_passed_over():
    ids = np.array([2, 200, 201, 202, 3])
    maskable = np.array([0, 1, 1, 1, 0], dtype=bool)
    starts = np.array([1, 1, 0, 1, 1], dtype=bool)
    assert mask(ids, maskable, word_starts=starts)[1].tolist() == [3]


def test_where_no_word_fits_one_is_begun():
    ids = np.array([2, 200, 201, 202, 3])
    maskable = np.array([0, 1, 1, 1, 0], dtype=bool)
    starts = np.array([1, 1, 0, 0, 1], dtype=bool)
    for coin in ("piece", "word"):
        assert mask(ids, maskable, word_starts=starts, coin=coin)[1].tolist() == [1]


@pytest.mark.parametrize("coin", ["piece", "word"])
def test_the_coin_of_whole_words(coin):
    ids, maskable = instance(120)
    starts = np.zeros(120, dtype=bool)
    starts[1:60:2] = starts[61:119:2] = True  # words of two pieces
    rng = np.random.Generator(np.random.Philox(key=5))
    both = Counter()
    for _ in range(2_000):
        corrupted, positions, _ = mask_tokens(
            ids, maskable, rng, mask_id=MASK, replacements=REPLACEMENTS, word_starts=starts, coin=coin
        )
        masked = corrupted[positions] == MASK
        pairs = [(first, first + 1) for first in positions[:-1] if starts[first] and first + 1 in positions]
        lookup = dict(zip(positions.tolist(), masked.tolist(), strict=True))
        both.update((lookup[first], lookup[second]) for first, second in pairs)
    total = sum(both.values())
    if coin == "word":
        assert set(both) == {(True, True), (False, False)}
        assert chi_square([both[True, True], both[False, False]], [0.8 * total, 0.2 * total]) < quantile(1)
    else:
        cells = [both[True, True], both[True, False], both[False, True], both[False, False]]
        assert chi_square(cells, np.array([0.64, 0.16, 0.16, 0.04]) * total) < quantile(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": (0.8, 0.1, 0.2)},
        {"rule": (0.8, 0.2)},
        {"rule": (1.2, -0.1, -0.1)},
        {"rate": 0.0},
        {"rate": 1.1},
        {"most": 0},
        {"coin": "text"},
        {"coin": "word"},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(ConfigError):
        mask(*instance(20), **settings)


def test_random_tokens_need_replacements():
    ids, maskable = instance(64)
    with pytest.raises(ConfigError, match="replacement"):
        mask_tokens(ids, maskable, np.random.default_rng(0), mask_id=MASK, replacements=np.array([]), rule=(0, 1, 0))
