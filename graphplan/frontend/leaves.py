"""Leaves: sub-modules that no tracer can follow become opaque ops that call the original.

What such an op returns cannot be found on fake tensors. The whole model runs for real on the small
example, at two batch sizes where there is a batch dimension, and each call of the sub-module is
noted: the shapes of its results, the buffers it writes, and what autograd keeps for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from graphplan.frontend.opaque import (
    OpaqueOp,
    Template,
    call_opaque,
    runs_original,
    split_call,
)
from graphplan.frontend.writes import storage_of


@dataclass(frozen=True)
class LeafCall:
    """One call of a leaf in one real run."""

    inputs: tuple[torch.Size, ...]
    outputs: tuple[tuple[torch.dtype, torch.Size], ...]
    result: Template
    """Structure of what it returned, and what of it was not a tensor."""
    written: tuple[str, ...]
    """Buffers that it changed."""
    saved_inputs: tuple[int, ...]
    internal_bytes: int


@dataclass(frozen=True)
class Leaf:
    """A sub-module that is kept as it is: its calls by batch size, in order, and why."""

    calls: Mapping[int, Sequence[LeafCall]]
    reason: str
    place: str | None


class ModuleCall(OpaqueOp):
    """A call of a sub-module, with its weights given from outside."""

    def __init__(
        self, module: nn.Module, template: Template, leaf: Leaf, *, call_index: int
    ) -> None:
        super().__init__(type(module).__qualname__, template)
        self.module = module
        self.leaf = leaf
        self.names = tuple(weights_of(module))
        self.call_by_size = {size: calls[call_index] for size, calls in leaf.calls.items()}

    def __call__(self, *given: Any) -> list[torch.Tensor]:
        split = self.template.num_tensors
        end = split + self.template.num_sizes
        args, kwargs = self.template.fill(given[:split], given[split:end])
        weights = dict(zip(self.names, given[end:], strict=True))
        found = torch.func.functional_call(self.module, weights, args, kwargs)
        return split_call(found)[1]

    @property
    def example(self) -> LeafCall:
        """The call at the first batch size."""
        return next(iter(self.call_by_size.values()))

    def written_positions(self) -> list[int]:
        """Which of the arguments it writes."""
        first = self.template.num_tensors + self.template.num_sizes
        return [first + self.names.index(name) for name in self.example.written]

    def fake_results(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Empty tensors of the shapes that real runs had, grown to the given inputs."""
        batch_size = self._read_batch_size(tensors)
        return [
            torch.empty([self._grow(batch_size, i, dim) for dim in range(len(shape))], dtype=dtype)
            for i, (dtype, shape) in enumerate(self.example.outputs)
        ]

    def _grow(self, batch_size: Any, index: int, dim: int) -> Any:
        lengths = {b: call.outputs[index][1][dim] for b, call in self.call_by_size.items()}
        scale, offset = _fit(lengths)
        return offset if scale == 0 else batch_size * scale + offset

    def _read_batch_size(self, tensors: Sequence[torch.Tensor]) -> Any:
        for index, tensor in enumerate(tensors):
            for dim in range(tensor.dim()):
                lengths = {b: call.inputs[index][dim] for b, call in self.call_by_size.items()}
                scale, offset = _fit(lengths)
                if scale:
                    return (tensor.shape[dim] - offset) // scale
        return next(iter(self.call_by_size))


def _fit(lengths: Mapping[int, int]) -> tuple[int, int]:
    (b, length), *others = lengths.items()
    scale = (others[0][1] - length) // (others[0][0] - b) if others else 0
    return scale, length - scale * b


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a module, tied ones once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@contextlib.contextmanager
def opaque_leaves(leaves: Mapping[nn.Module, Leaf]) -> Iterator[None]:
    """While it lasts, these sub-modules leave one op for each call in a trace."""
    with contextlib.ExitStack() as stack:
        for module, leaf in leaves.items():
            stack.enter_context(replaced_forward(module, _opaque_forward(module, leaf)))
        yield


@contextlib.contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own


def _opaque_forward(module: nn.Module, leaf: Leaf) -> Any:
    num_calls = 0
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        if runs_original():
            return original(*args, **kwargs)
        template, tensors, sizes = split_call((args, kwargs))
        target = ModuleCall(module, template, leaf, call_index=num_calls)
        num_calls += 1
        weights = list(weights_of(module).values())
        found = call_opaque(target, target.fake_results, tensors, sizes=sizes, weights=weights)
        return target.example.result.fill(found, ())

    return forward


@contextlib.contextmanager
def noted_calls(module: nn.Module) -> Iterator[list[LeafCall]]:
    """While it lasts, real calls of a sub-module are noted."""
    calls: list[LeafCall] = []
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        saved: list[torch.Tensor] = []
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            output = original(*args, **kwargs)
        inputs = split_call((args, kwargs))[1]
        written = [
            name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])
        ]
        calls.append(_note_call(module, inputs, output, saved, written))
        return output

    with replaced_forward(module, forward):
        yield calls


def _note_call(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    output: Any,
    saved: Sequence[torch.Tensor],
    written: Sequence[str],
) -> LeafCall:
    result, tensors, _ = split_call(output)
    given = {storage_of(tensor): index for index, tensor in enumerate(inputs)}
    weights = {storage_of(tensor) for tensor in weights_of(module).values()}
    storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in saved}
    return LeafCall(
        inputs=tuple(tensor.shape for tensor in inputs),
        outputs=tuple((tensor.dtype, tensor.shape) for tensor in tensors),
        result=result,
        written=tuple(written),
        saved_inputs=tuple(sorted(given[storage] for storage in storages if storage in given)),
        internal_bytes=sum(
            num_bytes
            for storage, num_bytes in storages.items()
            if storage not in given and storage not in weights
        ),
    )
