"""Times at sizes that were not measured grow with the size and keep a floor."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.interpolate import expand_table, fit_affine, interpolate_column
from graphplan.errors import InvalidOption
from graphplan.nouns.table import OpProfile, ProfileTable

SIZES = st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True).map(sorted)


def make_table(
    sizes: tuple[int, ...], forward: tuple[float, ...], calibration: tuple[float, ...] = ()
) -> ProfileTable:
    """A table of one op whose other columns are constant."""
    row = OpProfile(
        op="a",
        forward_s=forward,
        input_grad_s=(0.0,) * len(sizes),
        weight_grad_s=(2.0,) * len(sizes),
        workspace_bytes=tuple(100 * size for size in sizes),
        spread=0.1,
    )
    return ProfileTable(
        graph="f", device="cpu", source="measured", batch_sizes=sizes, rows=(row,),
        calibration=calibration,
    )  # fmt: skip


@given(SIZES, st.floats(0, 10), st.floats(0.001, 10), st.lists(st.integers(1, 2048), min_size=1))
def test_affine_times_are_reproduced_everywhere(
    sizes: list[int], base: float, slope: float, wanted: list[int]
) -> None:
    """Where the truth is a + b*n, interpolation and extrapolation find it."""
    values = [base + slope * size for size in sizes]
    found = interpolate_column(sizes, values, wanted)
    assert found == pytest.approx([base + slope * size for size in wanted], rel=1e-6)
    assert fit_affine(sizes, values).error < 1e-6


@given(SIZES, st.data())
def test_more_samples_never_take_less(sizes: list[int], data: st.DataObject) -> None:
    """Whatever was measured, the answer is monotone, non-negative, and near what was measured."""
    values = data.draw(
        st.lists(st.floats(1e-6, 1e3), min_size=len(sizes), max_size=len(sizes)), label="values"
    )
    found = interpolate_column(sizes, values, range(1, 1024))
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(found))
    assert min(found) >= 0
    at_sizes = interpolate_column(sizes, values, sizes)
    assert min(values) * 0.999 <= min(at_sizes) <= max(at_sizes) <= max(values) * 1.001


def test_small_sizes_keep_the_floor() -> None:
    """Times that do not grow below 8 samples are not assumed proportional below the smallest."""
    found = interpolate_column([4, 8, 64], [1.0, 1.1, 2.5], [1, 2, 4])
    assert found[2] == 1.0
    assert 0.85 < found[0] <= found[1] <= 1.0


def test_falling_times_are_levelled() -> None:
    """Noise that makes a larger size faster is averaged out."""
    assert interpolate_column([1, 2, 4], [3.0, 1.0, 5.0], [1, 2, 3, 4]) == (2.0, 2.0, 3.5, 5.0)


def test_a_table_is_expanded_with_its_fit_error() -> None:
    """New columns for times, bytes and calibration; the fit's error tells how affine the op is."""
    table = make_table((2, 4, 8), (1.0, 1.0, 4.0), (1.0, 1.2, 1.4))
    wide = expand_table(table, [8, 3, 4, 16])
    row = wide.rows[0]
    assert wide.batch_sizes == (3, 4, 8, 16)
    assert row.forward_s[:3] == (1.0, 1.0, 4.0)
    assert row.forward_s[3] > 4.0
    assert row.weight_grad_s == pytest.approx((2.0, 2.0, 2.0, 2.0))
    assert row.workspace_bytes == (300, 400, 800, 1600)
    assert wide.calibration == pytest.approx((1.1, 1.2, 1.4, 1.4))
    assert 0.05 < row.fit_error < 0.5
    assert row.spread == 0.1
    assert expand_table(table, [2, 4, 8]) is table
    assert expand_table(table, [4]).rows[0].forward_s == (1.0,)


def test_one_size_tells_nothing_about_others() -> None:
    """A table with one column answers for its size only, and says what to profile."""
    table = make_table((4,), (1.0,))
    assert expand_table(table, [4]) is table
    with pytest.raises(InvalidOption, match="--batch-sizes 1,4,8"):
        expand_table(table, [1, 8])
