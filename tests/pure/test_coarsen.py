"""Coarsening keeps what must stay together and never creates a cycle."""

from __future__ import annotations

import networkx
from hypothesis import given
from hypothesis import strategies as st

from graphplan.coarsen import coarsen_graph
from graphplan.nouns.opgraph import Op, OpGraph, Weight
from graphplan.nouns.tensor import TensorSpec

SPEC = TensorSpec(dtype="float32", shape=("b", 4))


def make_graph(edges: list[tuple[int, int]], num_ops: int, **changes: dict[int, object]) -> OpGraph:
    """A graph of ops o0, o1, … with the given edges; `changes` sets fields by op number."""
    ops = []
    for i in range(num_ops):
        fields: dict[str, object] = {"output": SPEC}
        fields |= {name: by_op[i] for name, by_op in changes.items() if i in by_op}
        inputs = tuple(f"o{src}" for src, dst in edges if dst == i)
        op = Op(name=f"o{i}", target="aten.relu.default", call="relu", inputs=inputs, **fields)  # type: ignore[arg-type]
        ops.append(op)
    buffer = Weight(name="stats", kind="buffer", spec=SPEC, trainable=False)
    return OpGraph(
        name="test",
        batch="dynamic",
        batch_size=2,
        inputs=(),
        weights=(buffer,),
        ops=tuple(ops),
        outputs=(),
    )


@st.composite
def random_graphs(draw: st.DrawFn) -> OpGraph:
    """Random DAGs with some views, some results without a tensor and some buffer writers."""
    num_ops = draw(st.integers(1, 14))
    pairs = [(i, j) for j in range(num_ops) for i in range(j)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    numbers = st.sets(st.integers(0, num_ops - 1), max_size=3)
    tuples = dict.fromkeys(draw(numbers))
    views = {i: next((f"o{a}" for a, b in edges if b == i), None) for i in draw(numbers)}
    writers: dict[int, object] = dict.fromkeys(draw(numbers), ("stats",))
    return make_graph(sorted(edges), num_ops, output=tuples, alias=views, mutates=writers)  # type: ignore[arg-type]


@given(random_graphs(), st.floats(0, 1))
def test_groups_are_an_acyclic_partition(graph: OpGraph, max_share: float) -> None:
    """Every op is in one group and the quotient is acyclic, in the order of the groups."""
    seconds = {op.name: float(i % 3) for i, op in enumerate(graph.ops)}
    groups = coarsen_graph(graph, seconds_by_op=seconds, max_share=max_share)
    assert sorted(name for group in groups for name in group) == sorted(graph.op_by_name)
    number = {name: i for i, group in enumerate(groups) for name in group}
    assert all(number[edge.src] <= number[edge.dst] for edge in graph.edges)


@given(random_graphs())
def test_musts_are_kept(graph: OpGraph) -> None:
    """Results without a tensor stay with their readers, writers of a buffer with each other."""
    number = {name: i for i, group in enumerate(coarsen_graph(graph)) for name in group}
    for edge in graph.edges:
        if graph.op_by_name[edge.src].output is None:
            assert number[edge.src] == number[edge.dst]
    assert len({number[op.name] for op in graph.ops if op.mutates}) <= 1


@given(random_graphs(), st.floats(0.1, 1))
def test_the_limit_is_respected(graph: OpGraph, max_share: float) -> None:
    """A group with two or more working parts stays within the share, unless it must not."""
    seconds = {op.name: 1.0 for op in graph.ops}
    musts = coarsen_graph(graph, seconds_by_op=seconds, max_share=0)
    groups = coarsen_graph(graph, seconds_by_op=seconds, max_share=max_share)
    largest = max(len(group) for group in musts)
    assert max(map(len, groups)) <= max(largest, max_share * len(graph.ops) + 1e-9)


def test_a_chain_falls_into_equal_groups() -> None:
    """Eight equal ops with a quarter share each become four pairs."""
    graph = make_graph([(i, i + 1) for i in range(7)], 8)
    groups = coarsen_graph(graph, seconds_by_op={f"o{i}": 1.0 for i in range(8)}, max_share=0.25)
    assert groups == (("o0", "o1"), ("o2", "o3"), ("o4", "o5"), ("o6", "o7"))


def test_a_view_follows_its_reader() -> None:
    """o1 is a view of o0 that only o3 reads."""
    graph = make_graph([(0, 1), (0, 2), (1, 3), (2, 3)], 4, alias={1: "o0"})
    assert coarsen_graph(graph) == (("o0",), ("o2",), ("o1", "o3"))


def test_together_encloses_what_lies_between() -> None:
    """Keeping both ends of a diamond together pulls its middle in."""
    graph = make_graph([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], 5)
    assert coarsen_graph(graph, together=(("o0", "o3"),)) == (("o0", "o1", "o2", "o3"), ("o4",))


def test_edges_of_the_view_match_the_graph() -> None:
    """The networkx view has the same edges."""
    graph = make_graph([(0, 1), (0, 2), (1, 2)], 3)
    view = graph.to_networkx()
    assert set(view.edges) == {("o0", "o1"), ("o0", "o2"), ("o1", "o2")}
    assert networkx.is_directed_acyclic_graph(view)
