"""A small graph and its table, written by hand, for tests of files."""

from __future__ import annotations

from graphplan.nouns.opgraph import Assumption, Input, Op, OpGraph, Weight
from graphplan.nouns.table import OpProfile, ProfileTable
from graphplan.nouns.tensor import TensorSpec

HIDDEN = TensorSpec(dtype="float32", shape=("b", 64))


def make_graph_example() -> OpGraph:
    """Two linear layers with a view between them, and a loss."""
    return OpGraph(
        name="tiny",
        batch="dynamic",
        batch_size=2,
        inputs=(
            Input(name="x", path="args[0]", spec=HIDDEN),
            Input(name="y", path="args[1]", spec=TensorSpec(dtype="int64", shape=("b",))),
        ),
        weights=(
            Weight(
                name="first.weight",
                kind="parameter",
                spec=TensorSpec(dtype="float32", shape=(64, 64)),
                trainable=True,
                aliases=("second.weight",),
            ),
            Weight(
                name="steps",
                kind="buffer",
                spec=TensorSpec(dtype="int64", shape=()),
                trainable=False,
            ),
        ),
        ops=(
            _op("linear", "aten.linear.default", ("x",), "first", weights=("first.weight",)),
            _op("relu", "aten.relu.default", ("linear",), "first.act", saved=("relu",)),
            _op("view", "aten.view.default", ("relu",), "", alias="relu"),
            _op("linear_1", "aten.linear.default", ("view",), "second", weights=("first.weight",)),
            Op(
                name="loss",
                target="aten.cross_entropy_loss.default",
                call="aten.cross_entropy_loss.default(%0, %1)",
                inputs=("linear_1", "y"),
                output=TensorSpec(dtype="float32", shape=()),
                needs_backward=True,
                saved_bytes=(8, 256),
                mutates=("steps",),
            ),
        ),
        outputs=("loss",),
        loss="loss",
        assumptions=(Assumption(kind="branch", text="x is not empty", source="tiny.py:3"),),
    )


def _op(
    name: str,
    target: str,
    inputs: tuple[str, ...],
    module: str,
    *,
    weights: tuple[str, ...] = (),
    saved: tuple[str, ...] = (),
    alias: str | None = None,
) -> Op:
    return Op(
        name=name,
        target=target,
        call=f"{target}(%0)",
        inputs=inputs,
        weights=weights,
        output=HIDDEN,
        module=module,
        needs_backward=True,
        alias=alias,
        saved=saved or inputs,
    )


def make_table_example() -> ProfileTable:
    """A measured table of the graph at three batch sizes."""
    graph = make_graph_example()
    return ProfileTable(
        graph=graph.fingerprint,
        device="a100-80gb",
        source="measured",
        batch_sizes=(1, 2, 4),
        rows=tuple(
            OpProfile(
                op=op.name,
                forward_s=(1e-5, 1.5e-5, 2.5e-5),
                input_grad_s=(1e-5, 1.5e-5, 2.5e-5),
                weight_grad_s=(0.0, 0.0, 0.0),
                workspace_bytes=(0, 0, 1 << 20),
                spread=0.02,
            )
            for op in graph.ops
        ),
        calibration=(1.1, 1.05, 1.02),
        provenance="written by hand",
    )
