"""Layers: which of a model's repeated blocks each stage holds, and what stands around them.

Megatron, DeepSpeed and torchtitan think in a list of layers with something before and after it:

    embedding | layer 0 | layer 1 | ... | layer n-1 | head and loss
      entry     ------------ layers -------------       exit

Every op of a model is of one of these kinds, or *free*: made outside of the layers and without a
gradient, as rotary tables, masks and positions are. These runtimes make such values where they need
them, or hand them along, so that a stage which reads them from far away is still a link of a chain.
What is none of these, an op with a gradient between two layers, no list can say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.stages import Stage, StageGraph

_INDEXED = re.compile(r"(?P<container>(?:[^.]+\.)*?[^.]+)\.(?P<index>\d+)(?:\..*)?")

Place = int | Literal["entry", "exit", "free", "between"]
"""Where an op is: the position of its layer, or what else it belongs to."""
Again = Literal["none", "layers", "stage", "part"]
"""What a stage recomputes: nothing; some layers, each for itself; all of it as one; or less than
whole layers."""


class LayerList(Noun, frozen=True, kw_only=True, dict=True):
    """The layers of a model, in the order in which it runs them."""

    container: str
    """Path of the module list, such as `transformer.h`."""
    indices: tuple[int, ...]
    """Numbers of the layers in that list, as the model's modules are called."""
    place_by_op: dict[str, Place]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Paths of the layers."""
        return tuple(f"{self.container}.{index}" for index in self.indices)

    def list_ops(self, place: Place) -> tuple[str, ...]:
        """The ops at a place, in the order of the graph."""
        return tuple(name for name, each in self.place_by_op.items() if each == place)


class StageLayers(Noun, frozen=True, kw_only=True):
    """What one stage holds of the list."""

    layers: tuple[int, ...]
    """Positions of its layers, ascending."""
    has_entry: bool
    has_exit: bool
    again: Again
    again_layers: tuple[int, ...]
    """Positions of the layers that it recomputes as a whole."""


def list_layers(graph: OpGraph) -> LayerList | None:
    """The module list with the most ops, and the place of every op; None if there is no list."""
    matches = (_INDEXED.fullmatch(op.module) for op in graph.ops)
    counts = Counter(match["container"] for match in matches if match)
    if not counts:
        return None
    container = max(counts, key=lambda name: (counts[name], name))
    index_by_op = {op.name: _layer_index(op.module, container) for op in graph.ops}
    indices = tuple(dict.fromkeys(i for i in index_by_op.values() if i is not None))
    position = {index: place for place, index in enumerate(indices)}
    placed: dict[str, Place] = {
        name: position[index] for name, index in index_by_op.items() if index is not None
    }
    return LayerList(container=container, indices=indices, place_by_op=_place_rest(graph, placed))


def _place_rest(graph: OpGraph, placed: dict[str, Place]) -> dict[str, Place]:
    """Places of the ops outside of the layers: before them, behind them, between, or free."""
    after: set[str] = set()
    for op in graph.ops:
        if any(name in after or isinstance(placed.get(name), int) for name in op.inputs):
            after.add(op.name)
    before: set[str] = set()
    for op in reversed(graph.ops):
        if op.name in before or isinstance(placed.get(op.name), int):
            before.update(op.inputs)
    found: dict[str, Place] = {}
    for op in graph.ops:
        if op.name in placed:
            found[op.name] = placed[op.name]
        elif not op.needs_backward:
            found[op.name] = "free"
        elif op.name in after:
            found[op.name] = "between" if op.name in before else "exit"
        else:
            found[op.name] = "entry" if op.name in before else "exit"
    return found


def _layer_index(module: str, container: str) -> int | None:
    rest = module.removeprefix(f"{container}.")
    head = rest.split(".", 1)[0]
    return int(head) if rest != module and head.isdigit() else None


def find_detour(graph: OpGraph, listed: LayerList) -> str | None:
    """What keeps the layers from being a chain, in words; None if they are one."""
    last = len(listed.indices) - 1
    rank = {"entry": -1, "exit": last + 1}
    between = listed.list_ops("between")
    if between:
        return f"{between[0]} works between two layers, outside of {listed.container}"
    for op in graph.ops:
        place = listed.place_by_op[op.name]
        for name in op.inputs:
            other = listed.place_by_op.get(name, "free")
            if "free" in (place, other) or not graph.op_by_name[name].needs_backward:
                continue
            src, dst = (rank.get(str(each), each) for each in (other, place))
            if not (isinstance(src, int) and isinstance(dst, int) and dst - src in (0, 1)):
                return f"{op.name} reads {name}, which is not of the layer just before it"
    return None


def find_unlike(graph: OpGraph, listed: LayerList) -> str | None:
    """The first layer that is built otherwise than the first one; None if all are alike."""
    built: dict[int, Counter[object]] = {}
    for op in graph.ops:
        place = listed.place_by_op[op.name]
        if isinstance(place, int):
            shapes = tuple(graph.weight_by_name[name].spec.shape for name in op.weights)
            built.setdefault(place, Counter())[op.target, shapes] += 1
    unlike = (place for place in sorted(built) if built[place] != built[0])
    return next((listed.paths[place] for place in unlike), None)


def place_stages(stages: StageGraph, graph: OpGraph, listed: LayerList) -> tuple[StageLayers, ...]:
    """What every stage holds; a layer that is cut is listed by all stages that have a part."""
    return tuple(_place_stage(stage, graph, listed) for stage in stages.stages)


def _place_stage(stage: Stage, graph: OpGraph, listed: LayerList) -> StageLayers:
    places = [listed.place_by_op[name] for name in stage.ops]
    layers = sorted({place for place in places if isinstance(place, int)})
    again, whole = _read_recompute(stage, graph, listed)
    return StageLayers(
        layers=tuple(layers),
        has_entry="entry" in places,
        has_exit="exit" in places,
        again=again,
        again_layers=whole,
    )


def _read_recompute(
    stage: Stage, graph: OpGraph, listed: LayerList
) -> tuple[Again, tuple[int, ...]]:
    """What a stage recomputes, in whole layers; their own results may be kept."""
    if not stage.recompute:
        return "none", ()
    if stage.recompute == stage.ops:
        return "stage", tuple(
            sorted({p for name in stage.ops if isinstance(p := listed.place_by_op[name], int)})
        )
    again = set(stage.recompute)
    kept = {name for op in graph.ops for name in op.saved} or set(graph.op_by_name)
    leaving = _list_leaving(graph.ops, listed)
    whole: list[int] = []
    by_layer: dict[Place, list[str]] = {}
    for name in stage.ops:
        if name in kept or name in again:
            by_layer.setdefault(listed.place_by_op[name], []).append(name)
    for place, names in by_layer.items():
        if not any(name in again for name in names):
            continue
        if isinstance(place, int) and all(name in again or name in leaving for name in names):
            whole.append(place)
        elif isinstance(place, int):
            return "part", ()
    return "layers", tuple(sorted(whole))


def _list_leaving(ops: Iterable[Op], listed: LayerList) -> set[str]:
    """Values of a layer that ops outside of it read."""
    place = listed.place_by_op
    return {name for op in ops for name in op.inputs if place.get(name, "free") != place[op.name]}


def find_ties(graph: OpGraph, listed: LayerList) -> dict[str, tuple[Place, ...]]:
    """Trained weights that are used at several places, with the places."""
    users: dict[str, dict[Place, None]] = {}
    for op in graph.ops:
        for name in op.weights:
            weight = graph.weight_by_name[name]
            if weight.trainable:
                users.setdefault(weight.name, {})[listed.place_by_op[op.name]] = None
    return {name: tuple(places) for name, places in users.items() if len(places) > 1}
