"""Example: one batch as the model takes it, and how its dimensions grow with the batch size."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphplan.errors import CaptureError
from graphplan.nouns.opgraph import BatchKind
from graphplan.nouns.tensor import Dim, TensorSpec, format_dim

Batch = Any
"""What `inputs` gives: a tuple of positional or a mapping of keyword arguments, or one tensor."""


@dataclass(frozen=True)
class Arguments:
    """A batch with positional and keyword arguments both."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments, in flat order."""
        return flat_tensors((self.args, self.kwargs))

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Arguments:
        """The same arguments with other tensors."""
        given = iter(tensors)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda _: next(given), (self.args, self.kwargs)
        )
        return Arguments(args, kwargs)


Inputs = Batch | Callable[[int], Batch]

_INPUTS_REMEDY = (
    "Give a function of the batch size that returns a tuple of positional or a dict of keyword"
    " arguments: lambda batch_size: (torch.randn(batch_size, 16),)."
)


@dataclass(frozen=True)
class Example:
    """Arguments of the model at `batch_size`; `specs` describes their tensors in flat order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: BatchKind
    batch_size: int
    specs: tuple[TensorSpec, ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments, in flat order."""
        return flat_tensors((self.args, self.kwargs))


def make_example(inputs: Inputs, *, batch_size: int = 2) -> Example:
    """Learn from `inputs` which dimensions grow with the batch size.

    A function of the batch size is called at three sizes and tells exactly; from one plain batch
    the leading dimension, when all its tensors share it, is taken for the batch dimension.
    """
    if callable(inputs):
        batches = {size: inputs(size) for size in (batch_size, batch_size + 1, batch_size + 3)}
        specs = _fit_specs({size: split_arguments(batch) for size, batch in batches.items()})
        return _build_example(batches[batch_size], specs, batch_size=batch_size)
    tensors = flat_tensors(split_arguments(inputs))
    leading = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
    size = next(iter(leading)) if len(leading) == 1 else None
    specs = tuple(_plain_spec(tensor, batched=size is not None) for tensor in tensors)
    return _build_example(inputs, specs, batch_size=size or 1)


def _build_example(batch: Batch, specs: tuple[TensorSpec, ...], *, batch_size: int) -> Example:
    args, kwargs = split_arguments(batch)
    if not specs:
        raise CaptureError("The inputs hold no tensor.", remedy=_INPUTS_REMEDY)
    dynamic = any(spec.has_batch for spec in specs)
    return Example(
        args=args,
        kwargs=kwargs,
        batch="dynamic" if dynamic else "none",
        batch_size=batch_size if dynamic else 1,
        specs=specs,
    )


def fix_batch(example: Example) -> Example:
    """The same example with its batch size fixed."""
    specs = tuple(
        TensorSpec(dtype=spec.dtype, shape=spec.sizes(example.batch_size)) for spec in example.specs
    )
    return replace(example, batch="fixed", specs=specs)


def split_arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of what `inputs` gave."""
    _open_dataclasses(batch)
    if isinstance(batch, Arguments):
        return batch.args, batch.kwargs
    if isinstance(batch, Mapping):
        return (), {str(key): value for key, value in batch.items()}
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    raise CaptureError(
        f"The inputs are a {type(batch).__name__}, not a tuple, dict or tensor.",
        remedy=_INPUTS_REMEDY,
    )


def _open_dataclasses(batch: Batch) -> None:
    """Let torch look into the dataclasses of a batch, as it does into tuples and dicts."""
    for leaf in pytree.tree_leaves(batch):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, Arguments)):
            torch.export.register_dataclass(type(leaf))
            for field in dataclasses.fields(leaf):
                _open_dataclasses(getattr(leaf, field.name))


def flat_tensors(arguments: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a nest, in flat order."""
    leaves = pytree.tree_leaves(arguments)
    return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def input_paths(arguments: tuple[tuple[Any, ...], dict[str, Any]], forward: Any) -> list[str]:
    """Where each tensor sits among the arguments of `forward`: `tokens`, `images.0`."""
    names = parameter_names(forward)
    paths = []
    for keys, leaf in pytree.tree_flatten_with_path(arguments)[0]:
        if isinstance(leaf, torch.Tensor):
            words = [_key_word(key) for key in keys[1:]]
            if _key_word(keys[0]) == "0" and int(words[0]) < len(names):
                words[0] = names[int(words[0])]
            paths.append(".".join(words))
    return paths


def parameter_names(forward: Any) -> list[str]:
    """Names of the positional parameters of a function."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(forward).parameters.values()
    return [parameter.name for parameter in found if parameter.kind in kinds]


def _key_word(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _fit_specs(arguments_by_size: Mapping[int, Any]) -> tuple[TensorSpec, ...]:
    """Each tensor's shape as a function of the batch size."""
    trees = [pytree.tree_structure(arguments) for arguments in arguments_by_size.values()]
    if any(tree != trees[0] for tree in trees):
        raise CaptureError(
            f"The inputs have another structure at batch sizes {list(arguments_by_size)}.",
            remedy="Return the same keys and nesting for every batch size.",
        )
    columns = zip(*map(flat_tensors, arguments_by_size.values()), strict=True)
    sizes = tuple(arguments_by_size)
    return tuple(_fit_spec(index, sizes, column) for index, column in enumerate(columns))


def _fit_spec(
    index: int, batch_sizes: tuple[int, ...], tensors: tuple[torch.Tensor, ...]
) -> TensorSpec:
    shape = []
    for dims in zip(*(tensor.shape for tensor in tensors), strict=True):
        scale, remainder = divmod(dims[1] - dims[0], batch_sizes[1] - batch_sizes[0])
        offset = dims[0] - scale * batch_sizes[0]
        fits = all(
            scale * size + offset == dim for size, dim in zip(batch_sizes, dims, strict=True)
        )
        if remainder or scale < 0 or not fits:
            raise CaptureError(
                f"A dimension of input tensor {index} is {list(dims)} at batch sizes"
                f" {list(batch_sizes)}, which is not a multiple of the batch size plus a constant.",
                remedy="Let every dimension be fixed or proportional to the batch size.",
            )
        shape.append(format_dim(scale, offset))
    return TensorSpec(dtype=dtype_name(tensors[0].dtype), shape=tuple(shape))


def _plain_spec(tensor: torch.Tensor, *, batched: bool) -> TensorSpec:
    shape = [int(size) for size in tensor.shape]
    dims: tuple[Dim, ...] = ("b", *shape[1:]) if batched else tuple(shape)
    return TensorSpec(dtype=dtype_name(tensor.dtype), shape=dims)


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the prefix."""
    return str(dtype).removeprefix("torch.")
