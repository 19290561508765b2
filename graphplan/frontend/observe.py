"""Observation: run a normalised graph on fake tensors and see what every op produces and keeps.

Shapes, views, and what autograd saves for the backward are taken from a run instead of from rules:
`effects` says what a call does, and runs it once for all that are alike. Runs at two batch sizes
give the affine dependence on b. The run is on fake CPU tensors: on meta, attention would be split
into parts that no real run has.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from graphplan.frontend.effects import Effect, Effects, Value
from graphplan.frontend.failure import describe_unsized
from graphplan.frontend.fakes import make_fake_mode
from graphplan.frontend.leaves import ModuleCall
from graphplan.frontend.nodes import is_float
from graphplan.frontend.writes import written_nodes
from graphplan.nouns.tensor import TensorSpec


@dataclass(frozen=True)
class Observation:
    """What one node did in one run."""

    value: Any
    """A fake tensor, shared by all that are alike, or whatever else the node produced."""
    alias: fx.Node | None
    """The value or weight whose memory the tensor shows."""
    saved: tuple[fx.Node, ...]
    """Values and weights that autograd keeps for this op, by the owner of their memory."""
    internal_bytes: int
    """Bytes that autograd keeps and that no value or weight owns."""


Run = dict[fx.Node, Observation]


def observe_graph(
    module: fx.GraphModule, specs: Mapping[str, TensorSpec], *, batch_size: int
) -> Run:
    """What every node of the graph does at a batch size."""
    mode = make_fake_mode()
    with mode, torch.enable_grad():
        return _Observer(module, specs, batch_size, Effects(mode)).run()


class _Observer:
    """Goes through the nodes in order; `owners` tells whose memory it is."""

    def __init__(
        self,
        module: fx.GraphModule,
        specs: Mapping[str, TensorSpec],
        batch_size: int,
        effects: Effects,
    ) -> None:
        self.module = module
        self.specs = specs
        self.batch_size = batch_size
        self.effects = effects
        self.results: dict[fx.Node, Any] = {}
        self.owners: dict[int, fx.Node] = {}
        self.saved: dict[fx.Node, tuple[tuple[int, int], ...]] = {}

    def run(self) -> Run:
        aliases: dict[fx.Node, fx.Node | None] = {}
        for node in self.module.graph.nodes:
            if node.op != "output":
                try:
                    effect = self._observe_node(node)
                except (RuntimeError, NotImplementedError) as error:
                    raise describe_unsized(node, error) from error
                self.results[node] = effect.result
                self.saved[node] = effect.saved
                aliases[node] = self._note_owner(node, effect.result)
        kept = self._attribute_saved()
        return {
            node: Observation(_open(result), aliases[node], *kept.get(node, ((), 0)))
            for node, result in self.results.items()
        }

    def _observe_node(self, node: fx.Node) -> Effect:
        if node.op == "placeholder":
            spec = self.specs[node.name]
            made = torch.empty(spec.sizes(self.batch_size), dtype=getattr(torch, spec.dtype))
            return Effect(self.effects.hold(made), ())
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(self.module)
            is_tensor = isinstance(held, torch.Tensor)
            return Effect(self.effects.hold_like(held) if is_tensor else held, ())
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: self.results[given])
        if isinstance(node.target, ModuleCall):
            return self._recall_leaf(node.target, args)
        assert callable(node.target)
        return self.effects.call(node.target, args, kwargs, writes=bool(written_nodes(node)))

    def _recall_leaf(self, target: ModuleCall, args: Sequence[Any]) -> Effect:
        """What a real run of a leaf produced and kept: it cannot run on fake tensors."""
        call = target.call_by_size.get(self.batch_size, target.example)
        saved = [(args[position].memory, 0) for position in call.saved_inputs]
        given = [each for each in args if isinstance(each, Value)]
        flows = any(each.tensor.requires_grad for each in given)
        results = target.fake_results([_open(each) for each in args[: target.template.num_tensors]])
        held = [
            self.effects.hold(each.requires_grad_(flows and is_float(each))) for each in results
        ]
        return Effect(held, (*saved, (_NOBODY, call.internal_bytes)))

    def _note_owner(self, node: fx.Node, result: Any) -> fx.Node | None:
        if not isinstance(result, Value):
            return None
        owner = self.owners.setdefault(result.memory, node)
        return owner if owner is not node else None

    def _attribute_saved(self) -> dict[fx.Node, tuple[tuple[fx.Node, ...], int]]:
        """What each op keeps: owners of memory, and bytes that nobody owns.

        A result of an op with several results belongs to the `getitem` that takes it.
        """
        position = {node: index for index, node in enumerate(self.module.graph.nodes)}
        owned: dict[fx.Node, dict[fx.Node, None]] = {}
        num_bytes: dict[fx.Node, int] = {}
        counted: set[int] = set()
        for op, saved in self.saved.items():
            for memory, held in saved:
                owner = self.owners.get(memory)
                if owner is not None:
                    keeper = owner if position[owner] > position[op] else op
                    owned.setdefault(keeper, {})[owner] = None
                elif memory not in counted:
                    num_bytes[op] = num_bytes.get(op, 0) + held
                    if memory != _NOBODY:
                        counted.add(memory)
        return {
            op: (tuple(owned.get(op, ())), num_bytes.get(op, 0)) for op in {**owned, **num_bytes}
        }


_NOBODY = -1
"""Memory that no value shows and that is not counted again."""


def _open(result: Any) -> Any:
    """The tensors of values, in the same nest."""
    return pytree.tree_map_only(Value, lambda value: value.tensor, result)
