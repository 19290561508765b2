"""StageRunner: forward and backward of one stage on this device, micro-batch by micro-batch."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from graphplan.frontend import StageModule
from graphplan.nouns.opgraph import OpGraph
from graphplan_runtime.stages import recast
from graphplan_runtime.stages.codegen import Uses, find_uses, generate_function
from graphplan_runtime.stages.deferred import (
    Kept,
    call_deferred,
    find_data,
    find_mixed,
    weight_half,
)
from graphplan_runtime.stages.graphstate import list_saved, replace_saved
from graphplan_runtime.stages.randomness import draws_numbers, seed_device
from graphplan_runtime.stages.regions import Again, call_region, find_regions
from graphplan_runtime.updates.gathered import GatheredWeights
from graphplan_runtime.updates.weights import WeightVersions

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]
_run_engine: Callable[..., Any] = torch.autograd.Variable._execution_engine.run_backward
"""What `torch.autograd.backward` calls after checks that cost as much as a small backward."""


_GRAD_IS_ON = _NOTHING = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSetup:
    """How a stage is run; the same for all its micro-batches."""

    device: torch.device
    has_backward: bool
    split_backward: bool = False
    recompute: bool = False
    """Whether the backward repeats the whole stage."""
    again: frozenset[str] = frozenset()
    """Ops that it repeats otherwise."""
    autocast: torch.dtype | None = None
    gathered: GatheredWeights | None = None
    """What has the weights that replicas share."""
    recasts: bool = False
    """Whether casts of weights are made again for the backward, which uses other weights."""


@dataclasses.dataclass(slots=True)
class _Saved:
    """What a forward leaves for its backward."""

    inputs: list[torch.Tensor]
    roots: list[GradientEdge | None]
    """By output; None where no gradient flows."""
    stamp: int
    seed: int
    kept: Kept
    buffers: dict[int, torch.Tensor]
    """By place among the weights: what the forward will have changed when it runs again."""
    alive: list[int] = dataclasses.field(default_factory=list)
    """What autograd keeps of gathered weights, by bucket."""
    found: Sequence[weakref.ref[recast.Kept]] = ()
    """What the backward will find, where casts are made again."""


class StageRunner:
    """Runs tasks F, B, I and W of one stage; decides nothing.

    Outputs are dropped as soon as they are sent: the backward starts from their place in the
    autograd graph, which does not need their contents.
    """

    def __init__(
        self, module: StageModule, graph: OpGraph, weights: WeightVersions, setup: StageSetup
    ) -> None:
        self.module = module
        self.setup = setup
        self.weights = weights
        self.needs_grad = [given.needs_grad and setup.has_backward for given in module.inputs]
        self.is_random = draws_numbers(module.graph)
        self._mutated = _find_mutated(module, graph)
        self._saved: dict[int, _Saved] = {}
        self._found: Sequence[weakref.ref[recast.Kept]] = ()
        self._alive: list[int] = []
        self._kept: Kept = []
        """Where the running forward's deferred ops will leave their weight gradients."""
        self._owners = {op.name: op.alias for op in graph.ops if op.alias is not None}
        """The value or weight whose memory a value shares."""
        self._graph = graph
        flowing = {op.name for op in graph.ops if op.needs_backward}
        self._on_data = _find_outputs_on_data(module, self.needs_grad, flowing)
        self._function = self._generate(flowing)

    def _generate(self, flowing: Collection[str]) -> Callable[..., tuple[Any, ...]]:
        module, graph = self.module, self.module.graph
        deferred = {}
        again = self.setup.again - {op.name for op in self._graph.ops if op.mutates}
        captured: set[fx.Node] = set()
        if self.setup.split_backward:
            given = {i.name for i, need in zip(module.inputs, self.needs_grad, strict=True) if need}
            data = find_data(graph, given, flowing)
            trainable = {weight.name for weight in module.weights if weight.trainable}
            for node in find_mixed(graph, data, trainable):
                deferred[node] = [each for each in node.all_input_nodes if each in data]
            again &= {node.name for node in data}
            captured = set(graph.nodes) - data
        return generate_function(
            graph,
            inputs=[given.name for given in module.inputs],
            weights=[weight.name for weight in module.weights],
            attributes=_Attributes(module),
            deferred=deferred,
            uses=self._find_uses(),
            regions=find_regions(graph, again) if self.setup.has_backward else (),
            recompute=self._recompute,
            captured=captured,
            defer=lambda function, *data: call_deferred(self._kept, function, *data),
        )

    def _recompute(self, function: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[Any, ...]:
        again = Again(partial(self._repeating, self._kept), self.setup.device, self.is_random)
        return call_region(again, function, *given)

    @contextlib.contextmanager
    def _repeating(self, kept: Kept) -> Iterator[None]:
        """While a region runs again for its backward."""
        before, self._kept = self._kept, kept
        dtype = self.setup.autocast
        with torch.autocast(self.setup.device.type, dtype=dtype, enabled=dtype is not None):
            yield
        self._kept = before

    def _find_uses(self) -> Uses | None:
        """Where the function opens and closes buckets of gathered weights."""
        gathered = self.setup.gathered
        if gathered is None:
            return None
        return find_uses(
            self.module.graph, self._owners, gathered.index_by_name, gathered.open, gathered.close
        )

    # -- tasks -----------------------------------------------------------------------------------

    def forward(self, micro_batch: int, inputs: list[torch.Tensor], *, seed: int) -> Tensors:
        """Task F: the outputs, cut off from the autograd graph."""
        stamp = self.weights.stamp(micro_batch)
        weights = self.weights.forward_weights(micro_batch)
        buffers: dict[int, torch.Tensor] = {}
        if self.setup.recompute:
            buffers = {place: weights[place].clone() for place in self._mutated}
        if not self.setup.has_backward or self.setup.recompute:
            with torch.no_grad():
                outputs = self._call(inputs, weights, seed)
            roots: list[GradientEdge | None] = []
            kept: Kept = []
        else:
            inputs, kept, outputs, roots = self._record(inputs, weights, seed)
        if self.setup.has_backward:
            saved = _Saved(inputs, roots, stamp, seed, kept, buffers, self._alive, self._found)
            self._saved[micro_batch] = saved
        return [output.detach() for output in outputs]

    def backward(self, micro_batch: int, gradients: Gradients) -> Gradients:
        """Task B: gradients of the inputs; those of the weights are accumulated."""
        saved = self._open(micro_batch)
        del self._saved[micro_batch]
        roots, starts = _pair(saved.roots, gradients)
        with self._gathering(saved):
            if roots:
                _run_engine(
                    roots, starts, False, False, (), allow_unreachable=True, accumulate_grad=True
                )
        self.weights.collect(micro_batch)
        return [
            each.grad if need else None
            for each, need in zip(saved.inputs, self.needs_grad, strict=True)
        ]

    def backward_inputs(self, micro_batch: int, gradients: Gradients) -> Gradients:
        """Task I: gradients of the inputs only."""
        saved = self._open(micro_batch)
        on_data = [
            root if flows else None for root, flows in zip(saved.roots, self._on_data, strict=True)
        ]
        others = [
            None if flows else root for root, flows in zip(saved.roots, self._on_data, strict=True)
        ]
        saved.kept.extend(zip(*_pair(others, gradients), strict=True))
        leaves = [x for x, need in zip(saved.inputs, self.needs_grad, strict=True) if need]
        roots, starts = _pair(on_data, gradients)
        with self._gathering(saved):
            found = iter(_differentiate(roots, leaves, starts))
        saved.inputs, saved.roots = [], []
        return [next(found) if need else None for need in self.needs_grad]

    def backward_weights(self, micro_batch: int) -> None:
        """Task W: accumulate the gradients of the weights, which task I left out."""
        saved = self._saved.pop(micro_batch)
        leaves = self.weights.backward_weights(micro_batch)
        with self._gathering(saved):
            weight_half(saved.kept, [each for each in leaves if each.requires_grad])
        self.weights.collect(micro_batch)

    def standing_by(self, kind: str) -> Callable[[object], None] | None:
        """For a task that has no rows here: the other replicas gather weights for it."""
        gathered = self.setup.gathered
        if gathered is None:
            return None
        is_forward, recomputes = kind == "F", self.setup.recompute and kind != "W"

        def stand_by(_: object) -> None:
            if is_forward or recomputes:
                gathered.begin_forward()
                gathered.end()
            if not is_forward:
                gathered.begin_backward(gathered.count_none())
                gathered.end()

        return stand_by

    # -- checkpoints -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> list[int]:
        """Micro-batches whose backward is to come."""
        return sorted(self._saved)

    def store(self, micro_batch: int, *, with_graph: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """What `restore` needs to have a micro-batch in flight again."""
        saved = self._saved[micro_batch]
        yield "facts", torch.tensor([saved.stamp, saved.seed])
        yield from ((f"input/{n}", tensor) for n, tensor in enumerate(saved.inputs))
        yield from ((f"buffer/{place}", tensor) for place, tensor in saved.buffers.items())
        if with_graph and not self.setup.recompute:
            weights = self.weights.backward_weights(micro_batch)
            stored = (
                recast.list_kept(saved.found, weights)
                if self.setup.recasts
                else list_saved(saved.roots, weights)
            )
            for place, tensor in stored.items():
                yield f"saved/{place}", tensor

    def restore(self, micro_batch: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Repeat the forward of a micro-batch that `store` has stored."""
        stamp, seed = map(int, tensors["facts"])
        parts: dict[str, dict[str, torch.Tensor]] = {"input": {}, "buffer": {}, "saved": {}}
        for name, tensor in tensors.items():
            kind, _, place = name.partition("/")
            if place:
                parts[kind][place] = tensor.to(self.setup.device)
        inputs = [parts["input"][str(n)] for n in range(len(parts["input"]))]
        saved = _Saved(inputs, [], stamp, seed, [], {})
        if self.setup.recompute:
            saved.buffers = {int(place): each for place, each in parts["buffer"].items()}
        else:
            weights = self.weights.backward_weights(micro_batch)
            held = {place: weights[place].clone() for place in self._mutated}
            saved.inputs, saved.kept, _, saved.roots = self._record(inputs, weights, seed)
            for mutated, buffer in held.items():
                weights[mutated].data.copy_(buffer)
            saved.found = self._found
            if self.setup.recasts:
                recast.replace_kept(saved.found, parts["saved"])
            else:
                replace_saved(saved.roots, parts["saved"])
        self._saved[micro_batch] = saved

    # -- parts -----------------------------------------------------------------------------------

    def _gathering(self, saved: _Saved) -> contextlib.AbstractContextManager[object]:
        """While a backward runs."""
        if self.setup.gathered is None:
            return _NOTHING
        return self.setup.gathered.passing_back(saved.alive)

    def _call(self, inputs: Tensors, weights: Tensors, seed: int) -> tuple[Any, ...]:
        if self.is_random:
            seed_device(self.setup.device, seed)
        if self.setup.autocast is None and self.setup.gathered is None:
            return self._function(*inputs, *weights)
        with contextlib.ExitStack() as stack:
            if self.setup.autocast is not None:
                stack.enter_context(
                    torch.autocast(self.setup.device.type, dtype=self.setup.autocast)
                )
            if self.setup.gathered is not None:
                self._alive = stack.enter_context(self.setup.gathered.passing())
            if self.setup.recasts and torch.is_grad_enabled():
                self._found = stack.enter_context(recast.recasting(weights))
            return self._function(*inputs, *weights)

    def _record(
        self, inputs: Tensors, weights: Tensors, seed: int
    ) -> tuple[list[torch.Tensor], Kept, tuple[Any, ...], list[GradientEdge | None]]:
        """Run with autograd on leaves of our own."""
        leaves = [
            x.detach().requires_grad_() if need else x
            for x, need in zip(inputs, self.needs_grad, strict=True)
        ]
        kept = self._kept = []
        # Entering a context takes as long as a tiny op.
        with _GRAD_IS_ON if torch.is_grad_enabled() else torch.enable_grad():
            outputs = self._call(leaves, weights, seed)
            roots = [_find_root(output) for output in outputs]
        return leaves, kept, outputs, roots

    def _open(self, micro_batch: int) -> _Saved:
        """What the forward saved, recomputed if it saved its inputs only."""
        saved = self._saved[micro_batch]
        self.weights.check_stamp(micro_batch, saved.stamp)
        weights = list(self.weights.backward_weights(micro_batch))
        if self.setup.recompute:
            for place, buffer in saved.buffers.items():
                weights[place] = buffer
            saved.inputs, saved.kept, _, saved.roots = self._record(
                saved.inputs, weights, saved.seed
            )
            saved.alive = self._alive
        return saved


class _Attributes(dict[str, Any]):
    """What a module holds under a dotted name."""

    def __init__(self, module: StageModule) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        found: Any = self.module
        for word in name.split("."):
            found = getattr(found, word)
        return found


def _find_mutated(module: StageModule, graph: OpGraph) -> list[int]:
    """Places among the weights of those that the forward writes into (running statistics)."""
    own = {node.name for node in module.graph.nodes}
    written = {name for op in graph.ops if op.name in own for name in op.mutates}
    return [place for place, weight in enumerate(module.weights) if weight.name in written]


def _find_outputs_on_data(
    module: StageModule, needs_grad: Sequence[bool], flowing: Collection[str]
) -> list[bool]:
    """Which outputs send a gradient on to the inputs; the others end at weights."""
    given = {x.name for x, need in zip(module.inputs, needs_grad, strict=True) if need}
    on_data = {node.name for node in find_data(module.graph, given, flowing)}
    return [name in on_data for name in module.outputs]


def _find_root(output: torch.Tensor) -> GradientEdge | None:
    """Where the gradient of an output starts; None for an output that has none."""
    if not output.requires_grad:
        return None
    if output.grad_fn is None:  # a leaf handed on as it is, by dropout(p=0) or contiguous()
        output = output.view_as(output)
    assert output.grad_fn is not None
    return GradientEdge(output.grad_fn, output.output_nr)


def _pair(
    roots: Sequence[GradientEdge | None], gradients: Gradients
) -> tuple[tuple[GradientEdge, ...], tuple[torch.Tensor, ...]]:
    """Roots that have a gradient, and the gradients."""
    pairs = [
        (root, gradient)
        for root, gradient in zip(roots, gradients, strict=True)
        if root is not None and gradient is not None
    ]
    return tuple(root for root, _ in pairs), tuple(gradient for _, gradient in pairs)


def _differentiate(
    roots: Sequence[GradientEdge], leaves: Tensors, starts: Tensors
) -> Sequence[torch.Tensor | None]:
    if not roots or not leaves:
        return [None] * len(leaves)
    return torch.autograd.grad(roots, leaves, starts, allow_unused=True)
