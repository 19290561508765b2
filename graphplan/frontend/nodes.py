"""Small questions about fx nodes that several passes ask."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphplan.frontend.places import place_in_text


def fake_value(node: fx.Node) -> Any:
    """What the node produced when it was traced: fake tensors, symbolic scalars, or nests."""
    return node.meta.get("val")


def is_float(value: Any) -> bool:
    """Whether a value is a tensor that can carry a gradient."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def is_scalar(value: Any) -> bool:
    """Whether a traced value is a symbolic number rather than a tensor."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The inputs of a node that are not scalars, in the order of the call."""
    return [given for given in node.all_input_nodes if not is_scalar(fake_value(given))]


def place_of_node(node: fx.Node) -> str | None:
    """The line of the user's code that made the node."""
    return place_in_text((node.meta.get("stack_trace") or "").splitlines())
