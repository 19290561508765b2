"""Interference: parts beside each other take at least the longest, at most what their sum may."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.interference import PARTS, load_coefficients, overlap_seconds, slow_down
from graphplan.errors import UnknownName

SECONDS = st.lists(st.sampled_from([0.0, 1e-4, 3e-3, 0.2]), min_size=4, max_size=4)


@given(SECONDS, st.sampled_from(sorted(load_coefficients())))
def test_parts_only_slow_each_other_down(alone: list[float], kind: str) -> None:
    """Never faster than the longest part, nor slower than all beside all; alone nothing changes."""
    found = load_coefficients()[kind]
    seconds = overlap_seconds(numpy.array([alone]), found)[0]
    assert seconds >= max(alone) * (1 - 1e-9)
    assert seconds <= sum(alone) * (1 + found.sum(axis=1).max())
    if sum(each > 0 for each in alone) == 1:
        assert seconds == pytest.approx(max(alone))


def test_without_coefficients_the_longest_part_counts() -> None:
    """What a simulator without interference assumes."""
    alone = numpy.array([[3.0, 1.0, 2.0, 0.0], [0.0, 5.0, 0.0, 1.0]])
    assert overlap_seconds(alone, numpy.zeros((4, 4))).tolist() == [3.0, 5.0]


def test_a_product_beside_an_all_gather_loses_about_half_of_it() -> None:
    """Inside a node of A100: product + 0.49 of the all-gather."""
    seconds = overlap_seconds(numpy.array([[10.0, 4.0, 0.0, 0.0]]), load_coefficients()["nvlink"])
    assert seconds[0] - 10 == pytest.approx(0.46 * 4, rel=0.1)
    assert slow_down("nvlink", "compute", "collective") > slow_down("nvlink", "compute", "to_host")
    assert slow_down("nvlink", "compute") == 1.0
    with pytest.raises(UnknownName):
        slow_down("copper", PARTS[0])
