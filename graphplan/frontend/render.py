"""Rendering: the call of an op as text, the same for the same call in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from graphplan.frontend.scalars import format_affine
from graphplan.frontend.targets import call_name

_SILENT = {"device", "pin_memory", "layout"}
"""Keyword arguments that say where a tensor lives, not what it is."""


def render_call(node: fx.Node, *, inputs: Sequence[fx.Node], weights: Sequence[fx.Node]) -> str:
    """The call with `%i` for inputs[i], `@i` for weights[i] and scalars as functions of b."""
    names = {given: f"%{index}" for index, given in enumerate(inputs)}
    names |= {given: f"@{index}" for index, given in enumerate(weights)}
    return _render_node(node, names)


def _render_node(node: fx.Node, names: dict[fx.Node, str]) -> str:
    words = [_render(arg, names) for arg in node.args]
    words += [
        f"{key}={_render(arg, names)}"
        for key, arg in sorted(node.kwargs.items())
        if key not in _SILENT and arg is not None
    ]
    return f"{call_name(node.target)}({', '.join(words)})"


def _render(arg: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(arg, fx.Node):
        return names.get(arg) or _render_other(arg, names)
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(_render(item, names) for item in arg)}]"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key}: {_render(arg[key], names)}" for key in arg) + "}"
    if isinstance(arg, slice):
        return ":".join(_render(part, names) for part in (arg.start, arg.stop, arg.step))
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return str(arg).removeprefix("torch.")
    if isinstance(arg, torch.device):
        return arg.type
    return repr(arg)


def _render_other(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """A scalar, or a sub-graph that a higher-order op holds."""
    if "affine" in node.meta:
        return format_affine(node)
    if node.op == "get_attr":
        return f"<{node.target}>"
    return _render_node(node, names)
