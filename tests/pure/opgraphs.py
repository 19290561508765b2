"""Small op graphs written by hand: inputs, weights and ops in a few words."""

from __future__ import annotations

from graphplan.nouns.opgraph import Input, Op, OpGraph, Weight
from graphplan.nouns.tensor import Dim, TensorSpec

Shape = tuple[Dim, ...]


def spec(*shape: Dim, dtype: str = "float32") -> TensorSpec:
    """A tensor spec."""
    return TensorSpec(dtype=dtype, shape=shape)


def op(
    name: str,
    call: str,
    inputs: tuple[str, ...],
    output: TensorSpec | None,
    *,
    weights: tuple[str, ...] = (),
    trained: bool = True,
    alias: str | None = None,
) -> Op:
    """An op whose target is the ATen function of its call."""
    return Op(
        name=name,
        target=f"aten.{call.partition('(')[0]}.default",
        call=call,
        inputs=inputs,
        weights=weights,
        output=output,
        needs_backward=trained,
        alias=alias,
    )


def graph(
    ops: list[Op],
    *,
    inputs: dict[str, TensorSpec],
    weights: dict[str, TensorSpec] | None = None,
    frozen: tuple[str, ...] = (),
) -> OpGraph:
    """A graph that returns its last op; all weights are trained but the frozen ones."""
    return OpGraph(
        name="handmade",
        batch="dynamic",
        batch_size=2,
        inputs=tuple(Input(name=name, path=name, spec=each) for name, each in inputs.items()),
        weights=tuple(
            Weight(name=name, kind="parameter", spec=each, trainable=name not in frozen)
            for name, each in (weights or {}).items()
        ),
        ops=tuple(ops),
        outputs=(ops[-1].name,),
    )


def mlp(num_layers: int, width: int, *, frozen: tuple[str, ...] = ()) -> OpGraph:
    """x -> (linear, relu) * num_layers; op l0 is the first linear and has no input gradient."""
    ops, value, trained = [], "x", False
    for i in range(num_layers):
        trained = trained or f"w{i}" not in frozen
        ops.append(
            op(
                f"l{i}",
                "linear(%0, @0)",
                (value,),
                spec("b", width),
                weights=(f"w{i}",),
                trained=trained,
            )
        )
        ops.append(op(f"r{i}", "relu(%0)", (f"l{i}",), spec("b", width), trained=trained))
        value = f"r{i}"
    return graph(
        ops,
        inputs={"x": spec("b", width)},
        weights={f"w{i}": spec(width, width) for i in range(num_layers)},
        frozen=frozen,
    )


def two_towers(width: int, num_layers: int = 3) -> OpGraph:
    """Two chains of linear layers that read x, and their sum."""
    ops, ends = [], []
    for tower in "ab":
        value = "x"
        for i in range(num_layers):
            name = f"{tower}{i}"
            ops.append(
                op(name, "linear(%0, @0)", (value,), spec("b", width), weights=(f"w{name}",))
            )
            value = name
        ends.append(value)
    ops.append(op("sum", "add(%0, %1)", tuple(ends), spec("b", width)))
    names = [f"w{tower}{i}" for tower in "ab" for i in range(num_layers)]
    return graph(
        ops, inputs={"x": spec("b", width)}, weights={name: spec(width, width) for name in names}
    )
