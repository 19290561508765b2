"""The sweep over grids and micro-batch sizes tries the best settings early."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.hardware import find_cluster
from graphplan.partition.pipelines.grid import Grid
from graphplan.partition.pipelines.sweep import Position, Setting, pick_next

CLUSTER = find_cluster("summit", gpus=6)


def make_settings(num_grids: int, num_sizes: int, guesses: list[float]) -> dict[Position, Setting]:
    """A full table of settings with these guesses, row by row."""
    places = [(g, s) for g in range(num_grids) for s in range(num_sizes)]
    return {
        place: Setting(Grid(CLUSTER), 1 << place[1], guess)
        for place, guess in zip(places, guesses, strict=True)
    }


def sweep(settings: dict[Position, Setting], value_of: dict[Position, float]) -> list[Position]:
    """All positions in the order in which they are tried."""
    found: dict[Position, float] = {}
    while (position := pick_next(settings, found)) is not None:
        assert position not in found
        found[position] = value_of[position]
    return list(found)


def test_the_way_to_the_best_setting_is_short() -> None:
    """Guesses point at small micro-batches; values fall towards (0, 8), eight sizes away."""
    settings = make_settings(2, 10, [s + 20.0 * g for g in range(2) for s in range(10)])
    value_of = {(g, s): 10.0 + abs(s - 8) + 3 * g for g in range(2) for s in range(10)}
    order = sweep(settings, value_of)
    assert order[:2] == [(0, 0), (1, 0)]
    assert order.index((0, 8)) == 9
    assert len(order) == 20


def test_settings_far_from_the_best_are_left_out() -> None:
    """Nothing is tried whose neighbours all take more than twice as long as the best."""
    settings = make_settings(1, 10, [abs(s - 4.0) for s in range(10)])
    value_of = {(0, s): 2.0 ** abs(s - 4) for s in range(10)}
    assert sorted(sweep(settings, value_of)) == [(0, s) for s in range(2, 7)]


@given(st.lists(st.floats(1, 10), min_size=12, max_size=12), st.data())
def test_everything_is_tried_where_nothing_fits(guesses: list[float], data: st.DataObject) -> None:
    """Infinite values end nothing: whatever fits is found."""
    settings = make_settings(3, 4, guesses)
    only = data.draw(st.sampled_from(sorted(settings)))
    value_of = {place: 1.0 if place == only else math.inf for place in settings}
    assert only in sweep(settings, value_of)
