"""Variants: the stages of a model for every shape of its inputs.

A capture is valid for any number of samples, but fixes all other sizes. When a batch comes with
another sequence length, the model is captured again at that length, without memory, and cut by the
same op -> stage map; the weights are those that are being trained. Every rank sees the shapes of
every batch, so that all ranks do this at the same step and nobody needs to be told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphplan.errors import InvalidOption
from graphplan.frontend import Captured, cut_graph
from graphplan.frontend.example import Arguments, dtype_name, split_arguments
from graphplan.nouns.opgraph import Input, OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Transfer
from graphplan_runtime.messages.deliveries import Routes
from graphplan_runtime.messages.parcels import split_batch
from graphplan_runtime.messages.rows import BatchAxis, count_rows, find_axis
from graphplan_runtime.messages.wiretypes import find_autocast, find_dtypes
from graphplan_runtime.stages.executor import Actions
from graphplan_runtime.stages.resolve import Rank, resolve_program
from graphplan_runtime.stages.stage import StageRunner, StageSetup
from graphplan_runtime.updates.gathered import GatheredWeights
from graphplan_runtime.updates.weights import WeightVersions

Batch = Any
Recapture = Callable[[Callable[[int], Batch]], Captured]
"""Captures the model again with other inputs."""
Shapes = tuple[tuple[int | str, ...], ...]
"""Sizes of the inputs, with the dimensions that grow with the batch as they were captured."""
Tensors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Variant:
    """The stages of this device for one shape of the inputs."""

    captured: Captured
    runners: dict[int, StageRunner]
    dtypes: dict[str, torch.dtype]
    actions_by_rows: dict[int, Actions] = dataclasses.field(default_factory=dict)

    @property
    def is_random(self) -> bool:
        """Whether a stage of this device draws random numbers."""
        return any(runner.is_random for runner in self.runners.values())

    @property
    def inputs(self) -> list[str]:
        """Model inputs that this device reads."""
        names = {
            given.name: None
            for runner in self.runners.values()
            for given in runner.module.inputs
            if given.source is None
        }
        return list(names)


class Variants:
    """Finds, or makes, the variant for a batch."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        first: Captured,
        *,
        rank: int,
        device: torch.device,
        recapture: Recapture | None,
    ) -> None:
        self.plan = plan
        self.program = program
        self.first = first
        self.rank = rank
        self.device = device
        self.recapture = recapture
        self.versions: dict[int, WeightVersions] = {}
        """By stage; to be filled before the first batch."""
        self.gathered: Mapping[int, GatheredWeights] = {}
        """By stage, where weights are gathered for every task; the same."""
        self._by_shapes: dict[Shapes, Variant] = {}

    def find(self, batch: Batch) -> tuple[Variant, Tensors]:
        """The variant for a batch, and the batch's tensors by input."""
        tensors = self.first.flatten_batch(batch)
        check_dtypes(self.first.graph, tensors)
        shapes = mask_shapes(self.first.graph, tensors)
        variant = self._by_shapes.get(shapes)
        if variant is None:
            known = tuple(tuple(given.spec.shape) for given in self.first.graph.inputs)
            captured = self.first
            if shapes != known and self.first.graph.batch == "dynamic":
                captured = self._capture_again(batch)
            variant = self._by_shapes[shapes] = self._make(captured)
        return variant, tensors

    def list_all(self) -> list[Variant]:
        """Those of all shapes so far."""
        return list(self._by_shapes.values())

    def imagine(self, shapes: Mapping[str, tuple[int, ...]]) -> Batch:
        """A batch without values, of which only the sizes are known."""
        tensors = [
            torch.empty(shapes[given.name], dtype=getattr(torch, given.spec.dtype), device="meta")
            for given in self.first.graph.inputs
        ]
        return Arguments(*pytree.tree_unflatten(tensors, self.first.input_tree))

    def resolve(self, variant: Variant, tensors: Tensors, actor: Rank) -> Actions:
        """The actions of this device for the number of samples of a batch."""
        num_rows = count_samples(variant.captured.graph, tensors)
        actions = variant.actions_by_rows.get(num_rows)
        if actions is None:
            split = split_batch(self.plan, variant.captured.graph, num_rows)
            routes = Routes(split=split, device=self.rank, program=self.program)
            actor = dataclasses.replace(actor, runners=variant.runners)
            axes = find_axes(variant.captured.graph, tensors)
            actions = resolve_program(actor, routes, dtypes=variant.dtypes, axes=axes)
            variant.actions_by_rows[num_rows] = actions
        return actions

    # -- making ----------------------------------------------------------------------------------

    def _make(self, captured: Captured) -> Variant:
        stages = self.plan.stages.stages
        stage_by_op = {op: s for s, each in enumerate(stages) for op in each.ops}
        modules = cut_graph(captured, stage_by_op, device=self.device)
        for s, versions in self.versions.items():
            assert len(versions.weights) == len(modules[s].weights), "a stage holds other weights"
        runners = {
            s: StageRunner(modules[s], captured.graph, self.versions[s], self._setup(s))
            for s in self.plan.prices.stages_by_device[self.rank]
        }
        return Variant(captured, runners, find_dtypes(captured, self.plan.training, self.device))

    def _setup(self, stage: int) -> StageSetup:
        line = self.program.instructions_by_device[self.rank]
        kinds = {t.kind for t in line if not isinstance(t, Transfer) and t.stage == stage}
        whole = self.plan.stages.stages[stage]
        return StageSetup(
            device=self.device,
            has_backward=self.plan.prices.stages[stage].needs_backward,
            split_backward="I" in kinds,
            recompute=whole.recompute == whole.ops,
            again=frozenset(whole.recompute if whole.recompute != whole.ops else ()),
            autocast=find_autocast(self.plan.training),
            gathered=self.gathered.get(stage),
            recasts=self.plan.training.mixed and self.plan.policy.forgets,
        )

    def _capture_again(self, batch: Batch) -> Captured:
        shapes = [list(tensor.shape) for tensor in self.first.flatten_batch(batch).values()]
        if self.recapture is None:
            raise InvalidOption(
                f"A batch has the shapes {shapes}, the model was captured with"
                f" {[list(given.spec.shape) for given in self.first.graph.inputs]}.",
                remedy="Give Pipeline the module instead of a Captured: it can be captured again.",
            )
        captured = self.recapture(make_inputs(self.first.graph, batch))
        if {op.name for op in captured.graph.ops} != set(self.plan.model.ops):
            raise InvalidOption(
                f"With the shapes {shapes} the model has other ops than those planned.",
                remedy="Pad the batches to the captured sizes, or plan for these shapes.",
            )
        return captured


def check_dtypes(graph: OpGraph, tensors: Tensors) -> None:
    """Messages between stages carry what follows from the captured dtypes."""
    for given in graph.inputs:
        found = dtype_name(tensors[given.name].dtype)
        if found != given.spec.dtype:
            raise InvalidOption(
                f"{given.path} is {found}, and was captured as {given.spec.dtype}.",
                remedy=f"Convert it: batch.to(torch.{given.spec.dtype}).",
            )


def mask_shapes(graph: OpGraph, tensors: Tensors) -> Shapes:
    """The sizes of a batch, the number of samples left out."""
    return tuple(
        tuple(
            dim if isinstance(dim, str) else size
            for dim, size in zip(given.spec.shape, tensors[given.name].shape, strict=False)
        )
        for given in graph.inputs
    )


def make_inputs(graph: OpGraph, batch: Batch) -> Callable[[int], Batch]:
    """Batches of any number of samples in the shapes of one batch."""
    arguments = Arguments(*split_arguments(batch))

    def inputs(num_rows: int) -> Arguments:
        tensors = []
        for given, tensor in zip(graph.inputs, arguments.tensors, strict=True):
            sizes = given.spec.sizes(num_rows)
            mixed = [
                size if isinstance(dim, str) else own
                for dim, size, own in zip(given.spec.shape, sizes, tensor.shape, strict=True)
            ]
            tensors.append(torch.zeros(mixed, dtype=tensor.dtype))
        return arguments.with_tensors(tensors)

    return inputs


def find_axes(graph: OpGraph, tensors: Tensors) -> dict[str, BatchAxis | None]:
    """The batch dimension of every model input."""
    if graph.batch == "fixed":
        return {g.name: _find_grown(g, tensors[g.name], graph.batch_size) for g in graph.inputs}
    return {given.name: find_axis(given.spec) for given in graph.inputs}


def _find_grown(given: Input, tensor: torch.Tensor, batch_size: int) -> BatchAxis | None:
    """The dimension that is a multiple of the captured one, which belongs to one micro-batch."""
    for dim, (size, own) in enumerate(zip(given.spec.shape, tensor.shape, strict=True)):
        assert isinstance(size, int), "a fixed batch has fixed sizes"
        if own != size and own % size == 0 and size % batch_size == 0:
            return BatchAxis(dim=dim, scale=size // batch_size)
    return None


def count_samples(graph: OpGraph, tensors: Tensors) -> int:
    """The number of samples in a batch."""
    if graph.batch == "none":
        return 1
    if graph.batch == "fixed":
        axes = find_axes(graph, tensors).items()
        counts = [tensors[n].shape[axis.dim] // axis.scale for n, axis in axes if axis is not None]
        return max(counts, default=graph.batch_size)
    found = {
        count_rows(given.spec, tuple(tensors[given.name].shape))
        for given in graph.inputs
        if given.spec.has_batch
    }
    if len(found) != 1 or None in found:
        raise InvalidOption(
            "The tensors of a batch do not have one number of samples: "
            + ", ".join(f"{g.path} {list(tensors[g.name].shape)}" for g in graph.inputs),
            remedy="Expected " + ", ".join(f"{g.path} {g.spec}" for g in graph.inputs),
        )
    num_rows = found.pop()
    assert num_rows is not None
    if num_rows == 0:
        raise InvalidOption(
            "The batch holds no sample.", remedy="Leave empty batches out of data()."
        )
    return num_rows
