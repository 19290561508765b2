"""Ranks that run elsewhere than planned are told of."""

from __future__ import annotations

import pytest

from graphplan.cost.hardware import find_cluster
from graphplan_runtime.hosts import Seat, compare_seats


@pytest.mark.parametrize(
    ("seats", "words"),
    [
        ([Seat("a", "h100")] * 8 + [Seat("b", "h100")] * 8, []),
        ([Seat("a", "")] * 16, []),
        ([Seat("a", "something new")] * 16, []),
        ([Seat("a", "h100")] * 8 + [Seat("b", "l40s")] * 8, ["Rank 8 runs on l40s"]),
        ([Seat("a", "h100"), Seat("b", "h100")] * 8, ["Ranks 0 and 1 share node 0"]),
    ],
    ids=["as planned", "on a CPU", "a type without a file", "another type", "every other host"],
)
def test_seats_are_compared_with_the_plan(seats: list[Seat], words: list[str]) -> None:
    """Two nodes of eight H100s; one sentence for each kind of difference."""
    found = compare_seats(find_cluster("dgx-h100", gpus=16), seats)
    assert [each[: len(word)] for each, word in zip(found, words, strict=True)] == words
