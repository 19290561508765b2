"""Captured: a model as an OpGraph together with the fx module that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from graphplan.errors import CaptureError
from graphplan.frontend.example import Batch, flat_tensors, split_arguments
from graphplan.nouns.opgraph import OpGraph


@dataclass(frozen=True)
class Captured:
    """What `trace_module` returns.

    `module` takes the tensors of `graph.inputs` by position and returns its flat output as a tuple;
    its node names are the op names, its weights have the names of the user's module.
    They are the user's own tensors when the module was real, meta tensors when it was built
    without memory; constants that the forward made have their values in both cases.
    """

    graph: OpGraph
    module: fx.GraphModule
    input_tree: pytree.TreeSpec
    """Structure of (args, kwargs)."""
    output_tree: pytree.TreeSpec

    def flatten_batch(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The model inputs by value name, from what `inputs` or a data loader gives."""
        arguments = split_arguments(batch)
        if pytree.tree_structure(arguments) != self.input_tree:
            raise CaptureError(
                "The batch has another structure than the one that was captured.",
                remedy=f"Expected {self.input_tree}.",
            )
        names, tensors = [given.name for given in self.graph.inputs], flat_tensors(arguments)
        if len(names) != len(tensors):
            raise CaptureError(
                f"The batch holds {len(tensors)} tensors, the one that was captured {len(names)}.",
                remedy="Give tensors where inputs() gives tensors: torch.as_tensor(array).",
            )
        return dict(zip(names, tensors, strict=True))

    def run(self, batch: Batch) -> Any:
        """Run the captured module like the user's own, result in the same nest."""
        flat = self.module(*self.flatten_batch(batch).values())
        return pytree.tree_unflatten(list(flat), self.output_tree)

    def unflatten_values(self, values: Mapping[str, torch.Tensor]) -> Any:
        """The nest that the user's model returns, from values by name."""
        flat: Any = self.module.graph.output_node().args[0]
        flat = fx.map_arg(flat, lambda node: values[node.name])
        return pytree.tree_unflatten(list(flat), self.output_tree)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights of the module by name."""
        named: Mapping[str, torch.Tensor] = {
            **dict(self.module.named_parameters()),
            **dict(self.module.named_buffers()),
        }
        return {weight.name: named[weight.name] for weight in self.graph.weights}
