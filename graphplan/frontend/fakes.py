"""Fake tensors: a module and a batch keep shapes, dtypes and ties while nothing is allocated.

All capture runs on fake tensors of the CPU, whether the user's module is real, on another device,
on meta, or was built here without memory: one device for all, so that the fingerprint of a graph
does not depend on how the module came to be.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree


def _fake_ctc_loss(
    mode: FakeTensorMode, func: Any, log_probs: torch.Tensor, targets: torch.Tensor, *args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of the samples, and what the backward needs for targets of the largest length."""
    num_frames, num_samples, _ = log_probs.shape
    kept = (num_samples, num_frames, 2 * targets.shape[-1] + 1)
    return log_probs.new_empty(num_samples), log_probs.new_empty(kept)


# torch has none: the lengths of the targets, which are values, tell the size of what it keeps.
op_implementations_dict.setdefault(torch.ops.aten._ctc_loss.Tensor, _fake_ctc_loss)


def make_fake_mode() -> FakeTensorMode:
    """A mode under which tensors can be made, read and exported without memory."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def on_cpu() -> contextlib.AbstractContextManager[object]:
    """Capture runs on the CPU, also where the user made another device the default."""
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()
    return torch.device("cpu")


def is_real(module: nn.Module) -> bool:
    """Whether all tensors of a module have memory."""
    tensors = [tensor for _, _, _, tensor in tensor_slots(module)]
    return not any(isinstance(each, FakeTensor) or each.is_meta for each in tensors)


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake CPU tensor of the same dtype, sizes and strides; a parameter stays a parameter."""
    with mode, torch.no_grad():
        fake = torch.empty_strided(
            tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad and tensor.is_leaf)


def fake_batch(batch: Any, mode: FakeTensorMode) -> Any:
    """The same nest of lists, tuples and dicts with fake tensors in it."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: fake_like(tensor, mode), batch)


def tensor_slots(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Every attribute that holds a tensor: full name, the module it sits in, the attribute, tensor.

    Parameters come first, then buffers, then plain tensor attributes; shared ones come once for
    each name.
    """
    modules = list(module.named_modules(remove_duplicate=False))
    for kind in ("_parameters", "_buffers", "__dict__"):
        for path, owner in modules:
            for key, tensor in list(owner.__dict__.get(kind, owner.__dict__).items()):
                if isinstance(tensor, torch.Tensor):
                    yield f"{path}.{key}" if path else key, owner, key, tensor


@contextlib.contextmanager
def faked_module(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """While it lasts, the module holds fake tensors; tied ones stay tied.

    Attributes are set the usual way: recurrent layers keep a second list of their weights, which
    follows only then.
    """
    slots = {(id(owner), key): (owner, key, t) for _, owner, key, t in tensor_slots(module)}
    fakes: dict[int, torch.Tensor] = {}
    try:
        with kept_attributes(module):
            for owner, key, tensor in slots.values():
                if id(tensor) not in fakes:
                    fakes[id(tensor)] = fake_like(tensor, mode)
                setattr(owner, key, fakes[id(tensor)])
            yield
    finally:
        for owner, key, tensor in slots.values():
            setattr(owner, key, tensor)


@contextlib.contextmanager
def kept_attributes(module: nn.Module) -> Iterator[None]:
    """What a forward sets (a cached table, a hook with a flag) is gone or as before afterwards.

    Lists and dicts among the attributes get their contents back: a flag without the hook that it
    stands for, or the other way round, would be worse than either.
    """
    slots = [each.__dict__ for each in module.modules()]
    # Subclasses may refuse to be changed (diffusers' FrozenDict), and then need no restoring.
    plain = (dict, list, OrderedDict)
    held = [value for slot in slots for value in slot.values() if type(value) in plain]
    kept = [(container, container.copy()) for container in (*slots, *held)]
    try:
        yield
    finally:
        for container, before in kept:
            container.clear()
            if isinstance(container, dict):
                container.update(before)
            else:
                container.extend(before)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same dtype, sizes and strides; a parameter stays a parameter."""
    with torch.no_grad():
        meta = torch.empty_strided(
            tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(meta, requires_grad=tensor.requires_grad)
    return meta
