"""Observation: run a normalised graph on fake tensors and see what every op produces and keeps.

Shapes, views, and what autograd saves for the backward are taken from a run instead of from rules:
`saved_tensors_hooks` report each saved tensor, and memory is told apart by its storage. Runs at two
batch sizes give the affine dependence on b. The run is on fake CPU tensors: on meta, attention
would be split into parts that no real run has.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from graphplan.frontend.failure import describe_unsized
from graphplan.frontend.fakes import fake_like, make_fake_mode
from graphplan.frontend.leaves import ModuleCall
from graphplan.frontend.nodes import is_float
from graphplan.frontend.scalars import largest_size
from graphplan.frontend.writes import storage_of
from graphplan.nouns.tensor import TensorSpec


@dataclass(frozen=True)
class Observation:
    """What one node did in one run."""

    value: Any
    """A fake tensor, or whatever else the node produced."""
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
    return _Observer(module, specs, batch_size, make_fake_mode()).run()


class _Observer:
    """Runs the nodes in order; `owners` tells whose memory every storage is."""

    def __init__(
        self,
        module: fx.GraphModule,
        specs: Mapping[str, TensorSpec],
        batch_size: int,
        mode: FakeTensorMode,
    ) -> None:
        self.module = module
        self.specs = specs
        self.batch_size = batch_size
        self.mode = mode
        self.owners: dict[int, fx.Node] = {}
        self.saved: dict[fx.Node, list[torch.Tensor]] = {}
        """Kept until the end, so that no storage number is given twice."""
        self.leaf_bytes: dict[fx.Node, int] = {}
        self.current: fx.Node | None = None

    def run(self) -> Run:
        values: dict[fx.Node, Any] = {}
        aliases: dict[fx.Node, fx.Node | None] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed)
        with self.mode, torch.enable_grad(), hooks:
            for node in self.module.graph.nodes:
                if node.op != "output":
                    self.current = node
                    try:
                        values[node] = self._run_node(node, values)
                    except (RuntimeError, NotImplementedError) as error:
                        raise describe_unsized(node, error) from error
                    aliases[node] = self._note_owner(node, values[node])
        kept = self._attribute_saved()
        return {
            node: Observation(value, aliases[node], *kept.get(node, ((), 0)))
            for node, value in values.items()
        }

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self.current is not None
        self.saved.setdefault(self.current, []).append(tensor)
        return tensor

    def _run_node(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if node.op == "placeholder":
            spec = self.specs[node.name]
            return torch.empty(spec.sizes(self.batch_size), dtype=getattr(torch, spec.dtype))
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(self.module)
            return fake_like(held, self.mode) if isinstance(held, torch.Tensor) else held
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: values[given])
        if isinstance(node.target, ModuleCall):
            return self._recall_leaf(node.target, args)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _recall_leaf(self, target: ModuleCall, args: Sequence[Any]) -> list[torch.Tensor]:
        """What a real run of a leaf produced and kept: it cannot run on fake tensors."""
        assert self.current is not None
        call = target.call_by_size.get(self.batch_size, target.example)
        self.saved[self.current] = [args[position] for position in call.saved_inputs]
        self.leaf_bytes[self.current] = call.internal_bytes
        flows = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
        results = target.fake_results(args[: target.template.num_tensors])
        return [result.requires_grad_(flows and is_float(result)) for result in results]

    def _note_owner(self, node: fx.Node, value: Any) -> fx.Node | None:
        if not isinstance(value, torch.Tensor):
            return None
        owner = self.owners.setdefault(storage_of(value), node)
        return owner if owner is not node else None

    def _attribute_saved(self) -> dict[fx.Node, tuple[tuple[fx.Node, ...], int]]:
        """What each op keeps: owners of memory, and bytes that nobody owns.

        A result of an op with several results belongs to the `getitem` that takes it.
        """
        position = {node: index for index, node in enumerate(self.module.graph.nodes)}
        owned: dict[fx.Node, dict[fx.Node, None]] = {}
        num_bytes = dict(self.leaf_bytes)
        counted: set[int] = set()
        for op, tensors in self.saved.items():
            for tensor in tensors:
                storage = storage_of(tensor)
                owner = self.owners.get(storage)
                if owner is not None:
                    keeper = owner if position[owner] > position[op] else op
                    owned.setdefault(keeper, {})[owner] = None
                elif storage not in counted:
                    held = largest_size(tensor.untyped_storage().nbytes())
                    num_bytes[op] = num_bytes.get(op, 0) + held
                    counted.add(storage)
        return {
            op: (tuple(owned.get(op, ())), num_bytes.get(op, 0)) for op in {**owned, **num_bytes}
        }
