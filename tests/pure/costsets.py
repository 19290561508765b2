"""Cost sets with a known law instead of measurements, to learn from."""

from __future__ import annotations

import math

import msgspec

from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import find_device_type
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import OpProfile, ProfileTable
from tests.pure.opgraphs import graph, op, spec

CPU = find_device_type("cpu")
SIZES = (1, 4, 16)
RATIO = 1.25
"""Step over sum of ops in every table."""


def make_net(width: int, num_layers: int, *, last: str = "relu") -> OpGraph:
    """Linear layers and activations of one width; `last` names the activation."""
    ops, value = [], "x"
    for i in range(num_layers):
        ops += [
            op(f"l{i}", "linear(%0, @0)", (value,), spec("b", width), weights=(f"w{i}",)),
            op(f"a{i}", f"{last}(%0)", (f"l{i}",), spec("b", width)),
        ]
        value = f"a{i}"
    return graph(
        ops,
        inputs={"x": spec("b", width)},
        weights={f"w{i}": spec(width, width) for i in range(num_layers)},
    )


def obey_law(net: OpGraph) -> ProfileTable:
    """The table of a device on which narrow products are slow, which no roofline can tell."""
    table = estimate_table(net, CPU, batch_sizes=SIZES)
    rows = []
    for row in table.rows:
        own = net.op_by_name[row.op]
        assert own.output is not None
        width = own.output.sizes(1)[-1]
        factor = 1 + 300 / width if own.kind == "linear" else 0.5 + math.log10(width)
        rows.append(_slow_down(row, factor))
    return msgspec.structs.replace(
        table, source="measured", rows=tuple(rows), calibration=(RATIO,) * len(SIZES)
    )


def _slow_down(row: OpProfile, factor: float) -> OpProfile:
    return msgspec.structs.replace(
        row,
        forward_s=tuple(factor * each for each in row.forward_s),
        input_grad_s=tuple(factor * each for each in row.input_grad_s),
        weight_grad_s=tuple(factor * each for each in row.weight_grad_s),
        spread=0.05,
    )


def make_set(num_models: int = 14) -> CostSet:
    """Models of growing width with relu and gelu."""
    samples = []
    for i in range(num_models):
        net = make_net(48 + 40 * i, 2 + i % 3, last="relu" if i % 2 else "gelu")
        samples.append(CostSample(model=f"net-{i}", graph=net, table=obey_law(net)))
    return CostSet(devices=(CPU,), samples=tuple(samples), provenance="a law")
