"""What ops keep that no value names: as seen on a CPU, and as an accelerator keeps it."""

from __future__ import annotations

import msgspec
import pytest

from graphplan.cost.saved import keep_internal
from graphplan.nouns.opgraph import Op
from tests.pure.opgraphs import op, spec

SIZE = 3


def keeper(call: str, per_sample: int, *shape: int) -> Op:
    """An op of float32 that keeps so many bytes of a sample."""
    made = op("x", call, ("y",), spec("b", *shape))
    return msgspec.structs.replace(made, saved_bytes=(0, per_sample))


@pytest.mark.parametrize(
    ("kept", "item_bytes", "accelerated", "wanted"),
    [
        (keeper("dropout(%0, 0.1, True)", 4 * 80, 8, 10), 4, False, 4 * 80),
        (keeper("dropout(%0, 0.1, True)", 4 * 80, 8, 10), 2, False, 2 * 80),
        (keeper("dropout(%0, 0.1, True)", 4 * 80, 8, 10), 2, True, 80),
        (keeper("native_dropout(%0, 0.1, True)", 80, 8, 10), 2, True, 80),
        (keeper("matmul(%0, %1)", 4 * 80, 8, 10), 2, True, 2 * 80),
        (keeper("layer_norm(%0, [10])", 8 * 8, 8, 10), 2, True, 8 * 8),
        (keeper("scaled_dot_product_attention(%0, %1, %2)", 999_999, 2, 64, 32), 2, True, 4 * 128),
        (keeper("scaled_dot_product_attention(%0, %1, %2)", 40, 2, 64, 32), 2, True, 40),
        (keeper("scaled_dot_product_attention(%0, %1, %2)", 999_999, 2, 64, 32), 2, False, 999_999),
    ],
)
def test_accelerators_keep_less(kept: Op, item_bytes: int, accelerated: bool, wanted: int) -> None:
    """Masks of bytes, sums of attention, copies in the training's precision, statistics as are."""
    assert keep_internal(kept, SIZE, item_bytes, accelerated=accelerated) == SIZE * wanted
