import pytest
import torch

from bertsmith.corpus.instances import Instance, Position
from bertsmith.errors import ConfigError
from bertsmith.train.batches import Feed, by_length, pretraining_counts

LENGTHS = [(at * 37) % 90 + 3 for at in range(1_003)]


def test_by_length_has_every_index_once_in_even_batches():
    batches = by_length(LENGTHS, 16, seed=0, epoch=0)
    assert sorted(index for batch in batches for index in batch) == list(range(1_003))
    assert sorted(len(batch) for batch in batches)[:2] == [1_003 % 16, 16]


def test_by_length_groups_what_is_alike_and_shuffles():
    batches = by_length(LENGTHS, 16, seed=0, epoch=0)
    spread = [max(LENGTHS[at] for at in batch) - min(LENGTHS[at] for at in batch) for batch in batches]
    assert sum(spread) / len(spread) < 8
    means = [sum(LENGTHS[at] for at in batch) for batch in batches]
    assert means != sorted(means)


def test_by_length_is_a_function_of_seed_and_epoch():
    assert by_length(LENGTHS, 16, 0, 1) == by_length(LENGTHS, 16, 0, 1)
    assert by_length(LENGTHS, 16, 0, 1) != by_length(LENGTHS, 16, 0, 2) != by_length(LENGTHS, 16, 1, 2)


def test_by_length_edges():
    assert by_length([], 4, 0, 0) == []
    assert by_length([5], 4, 0, 0) == [[0]]
    with pytest.raises(ConfigError, match="at least 1"):
        by_length([5], 0, 0, 0)


class Endless:
    """Stands in for Instances: the n-th instance has 3 + n % 7 tokens."""

    def stream(self, position, size):
        at = position.index
        while True:
            yield [make(at + number) for number in range(size)], Position(0, 0, at + size)
            at += size


def make(number):
    ids = torch.full((3 + number % 7,), number).numpy()
    return Instance(ids, ids * 0, ids[:1] * 0 + 1, ids[:1], number % 2 == 0)


def feed(position, batch=6, micro_batch=3):
    return Feed(Endless(), position, batch=batch, micro_batch=micro_batch, device=torch.device("cpu"))


def test_feed_cuts_a_step_by_length_and_knows_where_the_next_one_begins():
    source = feed(Position())
    first = next(source)
    assert source.position == Position()  # half a step is no place to go on from
    second = next(source)
    assert source.position == Position(0, 0, 6)
    assert first.rows.lengths + second.rows.lengths == (8, 7, 6, 5, 4, 3)
    assert pretraining_counts(first) == {"mlm": 3, "nsp": 3}


def test_feed_goes_on_from_any_position():
    straight = feed(Position())
    for _ in range(4):
        next(straight)
    resumed = feed(straight.position)
    for _ in range(4):
        assert torch.equal(next(straight).ids_T, next(resumed).ids_T)


def test_feed_refuses_a_micro_batch_that_does_not_divide_the_batch():
    with pytest.raises(ConfigError, match="no multiple"):
        feed(Position(), batch=6, micro_batch=4)
