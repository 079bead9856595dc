import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.nn.rows import Rows, lay_out


def test_positions_and_starts():
    ids_T, rows = lay_out([[5, 6, 7], [8], [9, 9]])
    assert ids_T.tolist() == [5, 6, 7, 8, 9, 9]
    assert rows.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert rows.starts.tolist() == [0, 3, 4]
    assert rows.bounds.tolist() == [0, 3, 4, 6]
    assert (rows.total, rows.count, rows.longest) == (6, 3, 3)
    assert [rows.row_of(token) for token in range(6)] == [0, 0, 0, 1, 2, 2]


def test_padded_rows_are_equal_rows_with_a_mask():
    rows = Rows.padded(torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert rows.lengths == (3, 3)
    assert rows.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert rows.buckets[0].keep_RL is not None
    assert Rows.padded(torch.ones(2, 3)).buckets[0].keep_RL is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 130), min_size=1, max_size=40))
def test_buckets_hold_every_token_once(lengths):
    rows = Rows.of(lengths)
    forth = rows.order[0] if rows.order else torch.arange(rows.total)
    if rows.order:
        assert torch.equal(rows.order[0][rows.order[1]], torch.arange(rows.total))
    owner = torch.repeat_interleave(torch.arange(rows.count), torch.tensor(lengths))[forth]
    assert sum(bucket.tokens for bucket in rows.buckets) == rows.total
    for bucket, owner_T in zip(rows.buckets, owner.split([bucket.tokens for bucket in rows.buckets]), strict=True):
        if bucket.keep_RL is None:
            owner_RL = owner_T.view(bucket.rows, bucket.longest)
            assert torch.equal(owner_RL, owner_RL[:, :1].expand_as(owner_RL))
            continue
        assert bucket.slot_tokens_P is not None
        assert torch.equal(bucket.slot_tokens_P[bucket.token_slots_T], torch.arange(bucket.tokens))
        assert torch.equal(bucket.keep_RL.flatten().nonzero()[:, 0], bucket.token_slots_T)
        owner_RL = owner_T[bucket.slot_tokens_P].view(bucket.rows, bucket.longest)
        assert torch.equal(owner_RL, owner_RL[:, :1].expand_as(owner_RL))  # fillers come from the row itself
        assert int(bucket.keep_RL.sum(1).min()) >= 1


def test_rows_in_order_are_sliced_and_long_runs_need_no_mask():
    rows = Rows.of([128] * 29 + [100, 60, 30])
    assert rows.order is None
    assert (rows.buckets[0].rows, rows.buckets[0].keep_RL) == (29, None)
    assert Rows.of([3, 5]).order is not None


def test_buckets_stay_few_and_waste_little():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 513, (256,), generator=generator).tolist()
    buckets = Rows.of(lengths).buckets
    assert len(buckets) <= 9
    assert sum(bucket.rows * bucket.longest for bucket in buckets) < 1.25 * sum(lengths)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lay_out([]), "an empty batch"),
        (lambda: lay_out([[1], []]), "row 1 of the batch is empty"),
        (lambda: Rows.padded(torch.tensor([[1, 0], [0, 0]])), "row 1 of the batch is padding only"),
        (lambda: Rows.padded(torch.ones(3)), r"shape \[rows, tokens\] was expected, found \[3\]"),
    ],
)
def test_what_is_no_batch_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
