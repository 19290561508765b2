"""Weights: a graph gets the tensors that it reads, under the names of the user's module."""

from __future__ import annotations

import operator
from typing import Literal

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from graphplan.frontend.batched import Traced
from graphplan.frontend.example import dtype_name
from graphplan.frontend.fakes import meta_like, tensor_slots
from graphplan.frontend.withloss import PREFIX, WithLoss
from graphplan.nouns.names import fit_path
from graphplan.nouns.opgraph import Weight
from graphplan.nouns.tensor import TensorSpec


def attach_weights(traced: Traced, *, keep: bool) -> tuple[fx.GraphModule, tuple[Weight, ...]]:
    """The executable module, and its weights as nouns.

    With `keep` it holds the user's own tensors, else meta tensors. Constants that the forward made
    keep their values in both cases.
    """
    prefix = PREFIX if isinstance(traced.module, WithLoss) else ""
    slots: dict[str, torch.Tensor] = {}
    names: dict[int, list[str]] = {}
    for full, _, _, tensor in tensor_slots(traced.module):
        slots[full] = tensor
        names.setdefault(id(tensor), []).append(fit_path(full.removeprefix(prefix)))
    buffers = {name for name, _ in traced.module.named_buffers(remove_duplicate=False)}
    attributes: dict[str, object] = {}
    weights = []
    for node in traced.graph.find_nodes(op="get_attr"):
        full = str(node.target)
        held = slots.get(full)
        if held is None:
            held = operator.attrgetter(full)(traced.attempt.body)
        if isinstance(held, torch.Tensor):
            own = names.get(id(held), [fit_path(full.removeprefix(prefix))])
            node.target = own[0]
            weights.append(_describe(held, own, is_buffer=full in buffers))
            if isinstance(held, FakeTensor) or (full in slots and not keep):
                held = meta_like(held)
        attributes[str(node.target)] = held
    return fx.GraphModule(attributes, traced.graph), tuple(weights)


def _describe(tensor: torch.Tensor, names: list[str], *, is_buffer: bool) -> Weight:
    kind: Literal["parameter", "buffer", "constant"] = "buffer" if is_buffer else "constant"
    if isinstance(tensor, nn.Parameter):
        kind = "parameter"
    return Weight(
        name=names[0],
        kind=kind,
        spec=TensorSpec(dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape)),
        trainable=tensor.requires_grad,
        aliases=tuple(names[1:]),
    )
