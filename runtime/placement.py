"""Placement: which devices talk to each other, and weights on their device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import nn

from graphplan.cost.rows import share_rows
from graphplan.errors import InvalidOption
from graphplan.nouns.opgraph import Weight
from graphplan.nouns.plan import Plan
from graphplan_runtime.messages.transport import Group
from graphplan_runtime.updates.holdings import Holdings


def list_pairs(plan: Plan) -> Iterable[tuple[int, int]]:
    """Ordered pairs of devices that may exchange messages, whatever the size of a batch.

    Two stages with equal micro-batches split the same rows. Boundaries are rounded down
    (messages/rows.py), which keeps their order: replicas whose even shares have nothing in common
    have no row in common in any batch. With unequal micro-batches a small last batch may shift
    shares against each other, so that any two replicas may meet.
    """
    stages = plan.stages.stages
    for edge in plan.stages.edges:
        sender, reader = stages[edge.src], stages[edge.dst]
        if sender.micro_batch_size == reader.micro_batch_size:
            shares = share_rows(len(sender.devices), len(reader.devices))
            ends = [(sender.devices[each.src], reader.devices[each.dst]) for each in shares]
        else:
            ends = [*itertools.product(sender.devices, reader.devices)]
        for src, dst in ends:
            if src != dst:
                yield from ((src, dst), (dst, src))


def list_communicators(plan: Plan, holdings: Holdings) -> Iterable[Group]:
    """Groups of devices that add up gradients, norms or weights together."""
    yield from holdings.list_groups()
    if len(holdings.updating) > 1:
        yield holdings.updating
    if plan.policy.name == "local":
        yield from holdings.list_replica_groups()


def list_gathering(plan: Plan) -> Iterable[Group]:
    """Groups of devices that gather weights for every task."""
    return (tuple(sorted(each.devices)) for each in plan.stages.stages if each.zero == 3)


def place_weight(
    tensor: torch.Tensor, weight: Weight, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A weight on a device: the same tensor where possible, a parameter if it is one."""
    if tensor.is_meta:
        raise InvalidOption(
            f"The {weight.kind} {weight.name!r} has no values: the model was built without memory.",
            remedy="Give the weights of this rank's stages with Pipeline(..., state=...).",
        )
    if tuple(tensor.shape) != tuple(weight.spec.shape):
        raise InvalidOption(
            f"{weight.name!r} has shape {list(tensor.shape)}, the captured model has"
            f" {list(weight.spec.shape)}.",
            remedy="Give weights of the model that was captured.",
        )
    if weight.kind != "parameter":
        return tensor.detach().to(device, dtype)
    if isinstance(tensor, nn.Parameter) and (tensor.device, tensor.dtype) == (device, dtype):
        return tensor
    return nn.Parameter(tensor.detach().to(device, dtype), requires_grad=weight.trainable)
