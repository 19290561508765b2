"""Cutting: an op -> stage map becomes one module for each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from graphplan.frontend.captured import Captured
from graphplan.frontend.devices import place_ops
from graphplan.frontend.legality import check_cut
from graphplan.frontend.lower import is_op
from graphplan.frontend.scalars import ScalarWriter, is_scalar_node
from graphplan.frontend.stage import StageInput, StageModule
from graphplan.nouns.opgraph import OpGraph

HOST = torch.device("cpu")


def cut_graph(
    captured: Captured, stage_by_op: Mapping[str, int], *, device: torch.device = HOST
) -> tuple[StageModule, ...]:
    """One module for each stage, ordered by stage number; raises CutError for an illegal map.

    Every stage takes the model inputs that it reads itself. A weight that several stages read is
    held by each of them, see `shared_weights`. The ops of a stage work on `device`; its weights
    stay where they are.
    """
    check_cut(captured.graph, stage_by_op)
    return tuple(
        _StageBuilder(captured, stage_by_op, index).build(device)
        for index in sorted(set(stage_by_op.values()))
    )


class _StageBuilder:
    """Copies the nodes of one stage into a graph of its own, in the order of the model."""

    def __init__(self, captured: Captured, stage_by_op: Mapping[str, int], index: int) -> None:
        self.captured = captured
        self.stage_by_op = stage_by_op
        self.index = index
        self.graph = fx.Graph()
        self.scalars = ScalarWriter(self.graph)
        self.copies: dict[fx.Node, Any] = {}
        self.nodes = [
            node
            for node in captured.module.graph.nodes
            if is_op(node) and stage_by_op[node.name] == index
        ]

    def build(self, device: torch.device) -> StageModule:
        inputs = self._copy_inputs()
        for node in self.nodes:
            self._copy_node(node)
        outputs = _find_outputs(self.captured.graph, self.stage_by_op, self.index)
        by_name = {node.name: copy for node, copy in self.copies.items()}
        self.graph.output(tuple(by_name[name] for name in outputs))
        place_ops(self.graph, device)
        graph = self.captured.graph
        targets = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
        return StageModule(
            {target: self._find_attribute(target) for target in targets},
            self.graph,
            index=self.index,
            inputs=inputs,
            outputs=outputs,
            weights=[weight for weight in graph.weights if weight.name in targets],
            loss=graph.loss if graph.loss in outputs else None,
        )

    def _find_attribute(self, target: str) -> Any:
        found: Any = self.captured.module
        for word in target.split("."):
            found = getattr(found, word)
        return found

    def _copy_inputs(self) -> list[StageInput]:
        inside = set(self.nodes)
        reads: dict[fx.Node, None] = {}
        for node in self.nodes:
            for given in node.all_input_nodes:
                if given.op == "placeholder" or (is_op(given) and given not in inside):
                    reads[given] = None
        inputs = [_describe_input(self.captured.graph, self.stage_by_op, node) for node in reads]
        if not any(given.spec.has_batch for given in inputs) and self._reads_scalars():
            node = self._batch_carrier()
            reads[node] = None
            inputs.append(_describe_input(self.captured.graph, self.stage_by_op, node))
        for node in reads:
            self.copies[node] = (
                self.graph.node_copy(node)
                if node.op == "placeholder"
                else (self.graph.placeholder(node.name))
            )
        for node, given in zip(reads, inputs, strict=True):
            if given.spec.has_batch and not self.scalars.has_batch_size:
                self.scalars.read_batch_size(self.copies[node], given.spec)
        return inputs

    def _reads_scalars(self) -> bool:
        return any(is_scalar_node(given) for node in self.nodes for given in node.all_input_nodes)

    def _batch_carrier(self) -> fx.Node:
        """The smallest model input that tells the batch size."""
        inputs = [given for given in self.captured.graph.inputs if given.spec.has_batch]
        smallest = min(inputs, key=lambda given: given.spec.num_bytes(2)).name
        nodes: list[fx.Node] = self.captured.module.graph.find_nodes(op="placeholder")
        return next(node for node in nodes if node.name == smallest)

    def _copy_node(self, node: fx.Node) -> Any:
        """The copy of an op, a weight or a scalar in this stage's graph."""
        if node in self.copies:
            return self.copies[node]
        if "affine" in node.meta:
            self.copies[node] = self.scalars.write_affine(*node.meta["affine"])
        else:
            for given in node.all_input_nodes:
                self._copy_node(given)
            self.copies[node] = self.graph.node_copy(node, lambda given: self.copies[given])
        return self.copies[node]


def _describe_input(graph: OpGraph, stage_by_op: Mapping[str, int], node: fx.Node) -> StageInput:
    spec = graph.spec_of(node.name)
    assert spec is not None
    op = graph.op_by_name.get(node.name)
    return StageInput(
        name=node.name,
        source=stage_by_op[node.name] if op else None,
        spec=spec,
        needs_grad=op.needs_backward if op else False,
    )


def _find_outputs(graph: OpGraph, stage_by_op: Mapping[str, int], index: int) -> list[str]:
    """Values of a stage that another stage or the user reads, in the order of the model."""
    read = set(graph.outputs)
    for op in graph.ops:
        if stage_by_op[op.name] != index:
            read |= set(op.inputs)
    return [op.name for op in graph.ops if stage_by_op[op.name] == index and op.name in read]
