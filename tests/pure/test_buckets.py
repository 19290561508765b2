"""Buckets: which gradients are reduced together, and in which order."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from graphplan.nouns.buckets import fill_buckets, order_gradients
from graphplan.nouns.opgraph import Op, OpGraph, Weight
from graphplan.nouns.tensor import TensorSpec

SPEC = TensorSpec(shape=(2,), dtype="float32")


def make_graph(*weights_by_op: str) -> OpGraph:
    """Ops op0, op1, ... that read the weights named by letters."""
    names = sorted({name for names in weights_by_op for name in names})
    return OpGraph(
        name="made",
        batch="none",
        batch_size=1,
        inputs=(),
        weights=tuple(Weight(name=n, kind="parameter", spec=SPEC, trainable=True) for n in names),
        ops=tuple(
            Op(name=f"op{i}", target="f", call="f()", inputs=(), weights=tuple(names), output=SPEC)
            for i, names in enumerate(weights_by_op)
        ),
        outputs=(),
    )


def test_gradients_are_complete_when_the_first_reader_has_run_backwards() -> None:
    """The picture of the module; a weight that is read again counts at its first reader."""
    graph = make_graph("e", "ab", "cd", "a")
    assert order_gradients(graph, ["op0", "op1", "op2", "op3"]) == ["d", "c", "b", "a", "e"]
    assert order_gradients(graph, ["op2", "op3"]) == ["a", "d", "c"]
    assert order_gradients(graph, []) == []


def test_a_bucket_closes_when_it_holds_enough() -> None:
    """However large its last gradient is; the rest is a bucket, too."""
    assert list(fill_buckets([4, 4, 4, 20, 1], 8)) == [range(2), range(2, 4), range(4, 5)]
    assert list(fill_buckets([], 8)) == []


@given(st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_buckets_are_the_gradients_in_order(sizes: list[int], limit: int) -> None:
    """Every gradient once; all buckets but the last hold enough, and would not without the last."""
    found = list(fill_buckets(sizes, limit))
    assert [place for places in found for place in places] == list(range(len(sizes)))
    for places in found[:-1]:
        held = list(accumulate(sizes[place] for place in places))
        assert held[-1] >= limit
        assert held[:-1] == [each for each in held[:-1] if each < limit]
