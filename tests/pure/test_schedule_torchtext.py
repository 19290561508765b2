"""torch's schedule files, read and written without torch."""

from __future__ import annotations

import pytest

from graphplan.errors import InvalidFile
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv, parse_torch_csv
from tests.pure.strategies import chain_prices


def test_a_chain_is_written_row_by_row() -> None:
    """One row for each rank, and back again."""
    priced = chain_prices(2, 2)
    schedule = build_1f1b(priced)
    text = format_torch_csv(schedule)
    assert text == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert parse_torch_csv(text, name="1f1b") == schedule


def test_idle_steps_and_messages_are_dropped() -> None:
    """Blanks, sends, receives and sharding actions leave only compute; pairs become their parts."""
    text = "0UNSHARD,0F0,0SEND_F0,,(0F1;0B0)OVERLAP_F_B,0I1,0W1,0REDUCE_GRAD,0RESHARD\r\n"
    assert str(parse_torch_csv(text, name="x")) == "0F0 0F1 0B0 0I1 0W1"


@pytest.mark.parametrize(
    "cell", ["2F0garbage", "F0", "0X1", "0U1", "0SEND_F", "(0F1;zz)OVERLAP_F_B"]
)
def test_other_cells_are_refused(cell: str) -> None:
    """Text that torch's own parser would half read is an error that names the row."""
    with pytest.raises(InvalidFile, match="Row 2"):
        parse_torch_csv(f"0F0\n{cell}\n", name="x")
