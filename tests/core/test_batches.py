"""Batches of texts: shapes for a GPU, which texts share one, and the least cost of all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.encoder import batches


@given(
    most=st.tuples(st.integers(1, 256), st.integers(1, 1_100)),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_batch_gets_the_smallest_shape_that_holds_it(most, share):
    """Neither side is more than doubled, or a text longer than 16 tokens; only many run as is."""
    batch = tuple(max(1, round(part * size)) for part, size in zip(share, most, strict=True))
    offered = batches.shapes(*most)
    found = batches.fitting(batch, offered)
    holding = [each for each in offered if each[0] >= batch[0] and each[1] >= batch[1]]
    if found is None:
        assert not holding
        doubled = min(most[0], 2 * batch[0]) * min(most[1], max(16, 2 * batch[1]))
        assert doubled > 16_384
    else:
        assert math.prod(found) == min(map(math.prod, holding)) <= 16_384
        assert found[0] < 2 * batch[0] or found[0] == 1
        assert found[1] < max(17, 2 * batch[1])


def test_the_shapes_of_the_encoder_are_few():
    """Each is recorded at the start and keeps buffers; all of them have aligned rows."""
    offered = batches.shapes(256, 512)
    assert len(offered) == len(set(offered)) == 48
    assert (1, 16) in offered
    assert (32, 512) in offered
    assert (256, 64) in offered
    assert (64, 512) not in offered
    assert all(tokens % 8 == 0 for _, tokens in offered)


@pytest.mark.parametrize("shortest", [0.0, 0.75, 1.0])
def test_batches_hold_every_row_once_and_texts_of_like_length(shortest):
    """Batches of a maximum size, longest rows first, each row at least a share of the longest."""
    lengths = np.random.default_rng(0).integers(1, 200, 300).tolist()
    made = list(batches.similar(lengths, 16, shortest))
    assert sorted(row for batch in made for row in batch) == list(range(300))
    for batch in made:
        of = [lengths[row] for row in batch]
        assert len(batch) <= 16
        assert of == sorted(of, reverse=True)
        assert of[-1] >= shortest * of[0]
    assert len(made) == 19 if shortest == 0.0 else len(made) > 19


def padded(made, lengths, offered, launch):
    """What batches cost: the shape that holds each, and its launch."""
    sizes = [(len(rows), max(lengths[row] for row in rows)) for rows in made]
    return sum(launch + math.prod(batches.fitting(size, offered) or size) for size in sizes)


def splits(rows):
    """All ways to cut a list."""
    if not rows:
        yield []
    for count in range(1, len(rows) + 1):
        yield from ([rows[:count], *others] for others in splits(rows[count:]))


@given(
    lengths=st.lists(st.integers(1, 90), max_size=8), launch=st.sampled_from([0, 20, 200, 2_048])
)
def test_no_other_batches_of_texts_in_order_cost_less(lengths, launch):
    """Against all ways to cut the sorted texts; one text may be longer than all shapes."""
    offered = batches.shapes(4, 64)
    made = list(batches.cheapest(lengths, offered, launch))
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    assert [row for rows in made for row in rows] == order
    held = [
        each
        for each in splits(order)
        if all(
            len(part) == 1 or batches.fitting((len(part), lengths[part[0]]), offered)
            for part in each
        )
    ]
    costs = [padded(each, lengths, offered, launch) for each in held]
    assert padded(made, lengths, offered, launch) == min(costs)


@pytest.mark.parametrize("launch", [2_048, 8_192])
def test_one_long_text_pads_no_short_ones(launch):
    """31 short texts beside one of 512 tokens are a batch of their own; one alone is padded."""
    offered = batches.shapes(256, 512)
    lengths = [12] * 31
    assert list(batches.cheapest([*lengths, 512], offered, launch)) == [[31], [*range(31)]]
    assert list(batches.cheapest([12, 512], offered, launch)) == [[1, 0]]


def test_the_longest_text_has_a_shape_although_it_is_no_power_of_two():
    """Positions end there: a longer shape would have none for its padding."""
    assert {tokens for _, tokens in batches.shapes(1, 40)} == {16, 32, 40}
    assert batches.shapes(2, 64) == [(1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (2, 64)]
    assert batches.shapes(3, 5) == [(1, 5), (2, 5), (3, 5)]
