"""Tensors to measure with: random, of given sizes and strides, with indices that are valid.

Floats are uniform in [0.1, 1], so that no op meets zeros, denormals or negative variances. Integers
are indices below the bound that their readers set (rows of an embedding, classes of a loss), or
ones where no reader sets one. Booleans are mostly true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

Bound = int | None

_FOLLOWED: tuple[str, ...] = (
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute",
    "transpose", "t", "expand", "expand_as", "slice", "select", "narrow", "split", "chunk",
    "unbind", "getitem", "detach", "alias", "clone", "contiguous", "to", "_to_copy", "repeat",
    "cat", "stack", "masked_fill", "where", "roll", "flip", "clamp", "pad", "constant_pad_nd",
)  # fmt: skip
"""Ops through which an index reaches its reader unchanged."""


def make_tensor(
    like: torch.Tensor, *, device: torch.device, bound: Bound = None, offsets_of: int | None = None
) -> torch.Tensor:
    """A tensor with the sizes, strides and dtype of `like`; a fake tensor serves.

    `offsets_of` asks for the ascending offsets of bags over so many indices.
    """
    sizes, strides = tuple(like.shape), like.stride()
    length = (
        1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if like.numel() else 0
    )
    flat = torch.empty(length, dtype=like.dtype, device=device)
    if like.dtype == torch.bool:
        flat.copy_(torch.rand(length, device=device) < 0.9)
    elif like.dtype.is_floating_point or like.dtype.is_complex:
        flat.copy_(torch.rand(length, device=device) * 0.9 + 0.1)
    elif offsets_of is not None:
        flat.copy_(torch.arange(length, device=device) * offsets_of // max(1, length))
    elif bound is None:
        flat.fill_(1)
    else:
        flat.copy_(torch.randint(0, max(1, bound), (length,), device=device))
    return flat.as_strided(sizes, strides)


def find_bound(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Bound:
    """How large an index in this value may become: the least bound of all that use it as one."""
    waiting, seen = [node], {node}
    bounds: list[int] = []
    while waiting:
        current = waiting.pop()
        for user in current.users:
            bound = _bound_by(user, current, value_of)
            if bound is not None:
                bounds.append(bound)
            elif _kind_of(user) in _FOLLOWED and user not in seen:
                seen.add(user)
                waiting.append(user)
    return min(bounds, default=None)


def find_offsets(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> int | None:
    """The number of indices that a value of bag offsets cuts, None when it is no such value."""
    for user in node.users:
        if _kind_of(user) in ("embedding_bag", "_embedding_bag") and user.args[2] is node:
            indices = value_of(user.args[1]) if isinstance(user.args[1], fx.Node) else None
            return int(indices.numel()) if isinstance(indices, torch.Tensor) else None
    return None


def _bound_by(user: fx.Node, index: fx.Node, value_of: Callable[[fx.Node], Any]) -> Bound:
    """The bound that one reader sets for one of its operands."""
    kind, args = _kind_of(user), user.args
    if kind in ("embedding", "embedding_bag", "_embedding_bag") and args[1] is index:
        return _size_of(args[0], 0, value_of)
    if (
        kind in ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
        and args[0] is not index
    ):
        places: Sequence[Any] = args[1] if isinstance(args[1], (list, tuple)) else ()
        position = next((i for i, each in enumerate(places) if each is index), None)
        return None if position is None else _size_of(args[0], position, value_of)
    if kind in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d") and args[1] is index:
        return _size_of(args[0], 1, value_of) or _size_of(args[0], 0, value_of)
    along_dim = kind.startswith(("gather", "scatter", "index_")) and len(args) > 2
    if along_dim and args[2] is index and isinstance(args[1], int):
        return _size_of(args[0], args[1], value_of)
    if kind == "one_hot" and len(args) > 1 and isinstance(args[1], int):
        return args[1]
    return None


def _size_of(operand: Any, dim: int, value_of: Callable[[fx.Node], Any]) -> Bound:
    value = value_of(operand) if isinstance(operand, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not -value.dim() <= dim < value.dim():
        return None
    return int(value.shape[dim])


def _kind_of(node: fx.Node) -> str:
    """`aten.embedding.default` -> `embedding`, `getitem` -> `getitem`."""
    if node.op != "call_function":
        return ""
    parts = str(node.target).split(".")
    if len(parts) > 1:
        return parts[1]
    return str(getattr(node.target, "__name__", node.target))
