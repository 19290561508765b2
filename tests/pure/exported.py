"""Plans of a small decoder, written by hand, to be said in the words of other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from graphplan.export.layers import LayerList, list_layers
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.stages import Stage, StageEdge, StageGraph, ZeroLevel
from graphplan.nouns.training import Training
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from tests.pure.opgraphs import graph, op, spec
from tests.pure.plans import make_cluster, make_plan_example
from tests.pure.strategies import dag_prices

WIDTH = 8
PATH = "model.layers"


def decoder(
    num_layers: int,
    *,
    tied: bool = False,
    frozen: bool = False,
    shared: bool = False,
    width: int = WIDTH,
) -> OpGraph:
    """tokens -> embed -> (attend, feed) * layers -> norm -> head; layers read a rotary table.

    Embedding and head are tied, the first layer is frozen, all layers share a weight if so wished.
    """

    def part(name: str, call: str, inputs: tuple[str, ...], module: str, **more: object) -> Op:
        made = op(name, call, inputs, spec("b", width), **more)  # type: ignore[arg-type]
        return msgspec.structs.replace(made, module=module)

    ops = [
        part("rotary", "cos(%0)", ("tokens",), "model.rotary", trained=False),
        part("embed", "embedding(@0, %0)", ("tokens",), "model.embed", weights=("embed",)),
    ]
    value = "embed"
    for i in range(num_layers):
        inside = f"{PATH}.{i}"
        ops += [
            part(
                f"attend{i}",
                "linear(%0, @0)",
                (value, "rotary"),
                f"{inside}.attention",
                weights=("w0" if shared else f"w{i}",),
            ),
            part(f"feed{i}", "relu(%0)", (f"attend{i}",), f"{inside}.feed"),
        ]
        value = f"feed{i}"
    head = "embed" if tied else "head"
    ops += [
        part("norm", "layer_norm(%0)", (value,), "model.norm"),
        part("score", "linear(%0, @0)", ("norm",), "head", weights=(head,)),
    ]
    weights = {name: spec(width, width) for name in ("embed", *({head} - {"embed"}))}
    weights |= {f"w{i}": spec(width, width) for i in range(num_layers)}
    made = graph(
        ops,
        inputs={"tokens": spec("b", width)},
        weights=weights,
        frozen=("w0",) if frozen else (),
    )
    if not tied:
        return made
    aliased = tuple(
        msgspec.structs.replace(weight, aliases=("head",)) if weight.name == "embed" else weight
        for weight in made.weights
    )
    return msgspec.structs.replace(made, weights=aliased)


def cut_layers(model: OpGraph, counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Ops by stage for so many layers each; embedding first, head last."""
    listed = listed_layers(model)
    stages: list[tuple[str, ...]] = []
    start = 0
    for s, count in enumerate(counts):
        places = set(range(start, start + count))
        start += count
        ends = {"entry", "free"} if s == 0 else set()
        ends |= {"exit"} if s == len(counts) - 1 else set()
        stages.append(tuple(n for n, place in listed.place_by_op.items() if place in places | ends))
    return stages


def listed_layers(model: OpGraph) -> LayerList:
    """The layers of a model that has some."""
    listed = list_layers(model)
    assert listed is not None
    return listed


def hand_plan(
    model: OpGraph,
    ops: Sequence[tuple[str, ...]],
    *,
    devices: Sequence[tuple[int, ...]] | None = None,
    sizes: Sequence[int] | int = 2,
    num_micro_batches: int = 4,
    zero: Sequence[ZeroLevel] | ZeroLevel = 0,
    recompute: Sequence[tuple[str, ...]] = (),
    policy: WeightPolicy | None = None,
    training: Training | None = None,
    order: Callable[[PricedStages], Schedule] | None = None,
    num_devices: int = 0,
) -> Plan:
    """A plan of these stages; 1F1B, in turns where stages share a device."""
    num = len(ops)
    placed = devices or [(s,) for s in range(num)]
    size = [sizes] * num if isinstance(sizes, int) else list(sizes)
    level = [zero] * num if isinstance(zero, int) else list(zero)
    again = recompute or [()] * num
    stages = StageGraph(
        stages=tuple(
            Stage(
                ops=ops[s],
                devices=placed[s],
                micro_batch_size=size[s],
                zero=level[s],
                recompute=again[s],
            )
            for s in range(num)
        ),
        edges=tuple(list_edges(model, ops)),
    )
    batch = num_micro_batches * max(size)
    count = max(num_devices, 1 + max(d for each in placed for d in each))
    priced = dag_prices(
        sorted(stages.edges_by_ends),
        num_stages=num,
        devices=placed,
        micro_batch_sizes=size,
        batch_size=batch,
        memory_bytes=[1 << 40] * count,
    )
    turns = len(set(placed)) < num
    schedule = (order or (build_interleaved if turns else build_1f1b))(priced)
    base = make_plan_example([(0, 1)]).plan
    training = training or Training(batch_size=batch)
    return msgspec.structs.replace(
        base,
        model=msgspec.structs.replace(base.model, fingerprint=model.fingerprint),
        cluster=make_cluster(count),
        training=msgspec.structs.replace(training, batch_size=batch),
        stages=stages,
        prices=priced,
        policy=policy or WeightPolicy(),
        program=tuple(str(lower_schedule(priced, schedule, WeightPolicy())).split("\n")),
        provenance=msgspec.structs.replace(base.provenance, schedule=schedule.name),
    )


def list_edges(model: OpGraph, ops: Sequence[tuple[str, ...]]) -> list[StageEdge]:
    """The values that stages hand to each other."""
    stage_of = {name: s for s, each in enumerate(ops) for name in each}
    found = {
        (stage_of[edge.src], stage_of[edge.dst], edge.src)
        for edge in model.edges
        if stage_of[edge.src] != stage_of[edge.dst]
    }
    return [
        StageEdge(
            src=src,
            dst=dst,
            value=value,
            spec=spec("b", WIDTH),
            needs_grad=model.op_by_name[value].needs_backward,
        )
        for src, dst, value in sorted(found)
    ]
