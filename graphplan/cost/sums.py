"""StageSums: what the price of a stage is made of, and the formulas that make it.

Sums are collected in three ways: over a set of nodes (model.py), over every interval of an order
and over every pair of nested down-sets (cuts.py). The formulas here do not care which: they take
the numbers of one stage, or arrays with a number for each of many stages. So searches that go
through tables and the plan that comes out of them are priced alike.

    sums(nodes | cuts, samples, types) ---> count_memory ---> StageMemory, by purpose
                                       '--> price_sums   ---> StageCosts, what a StagePrice holds

What depends on other stages is not in here: messages, their share of the tasks at both ends, and
the reduction of weights that several stages hold (CostModel.price_stages adds them).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.problem import Problem
from graphplan.nouns.training import STATES_PER_PARAMETER, Training

Number = Any
"""A number of one stage, or an array with a number for each of many stages."""

WIDENED = 2
"""Width of an optimizer state or master weight under mixed precision over that of a weight: 32 bits
for 16, and on the safe side where weights stay wider (complex ones)."""


class Copies(NamedTuple):
    """How often a policy holds the trained weights of a stage."""

    versions: int = 1
    directions: int = 0
    """Buffers for directions that the optimizer does not keep; they count as its states."""


SINGLE = Copies()


class Sharing(NamedTuple):
    """What the replicas of a stage share: the level of ZeRO, and how many they are."""

    zero: int = 0
    replicas: int = 1


ALONE = Sharing()
NUM_BUCKETS = 2
"""Buckets that are flattened at once, beside the gradients; with zero 3, and gathered weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSums:
    """Sums over the nodes of a stage on one replica, for one micro-batch."""

    forward_s: Number
    """On the slowest of the device types, as the two below."""
    input_grad_s: Number
    weight_grad_s: Number
    own_elements: Number
    """Elements of trained weights that no other node reads."""
    tied_elements: Number
    """Elements of trained weights that nodes outside may read, too; once for a stage."""
    held_bytes: Number
    saved_bytes: Number
    """Storages that are kept for the backward, each once."""
    saved_for_weights_bytes: Number
    workspace_bytes: Number
    """The largest of a node."""
    entering_bytes: Number
    """Tensors that come in, from other stages or from the user."""
    received_bytes: Number
    """Tensors that come in from other stages."""
    entering_buffer_bytes: Number
    """The same, with room for the gradients that go back."""
    leaving_buffer_bytes: Number
    """Tensors that go out, with room for the gradients that come back."""
    trains: Number
    """Whether a node needs a backward."""
    returns: Number
    """Whether a gradient goes back: else all of the backward is weight gradients."""

    @property
    def trained_elements(self) -> Number:
        """Elements of all trained weights of the stage."""
        return self.own_elements + self.tied_elements


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes of a stage on one replica, by purpose."""

    weights: Number
    """Trained weights in all their versions, and frozen ones."""
    gradients: Number
    optimizer: Number
    buffers: Number
    saved: Number
    """Of one in-flight micro-batch."""
    saved_for_weights: Number
    workspace: Number

    @property
    def fixed(self) -> Number:
        """What does not depend on the micro-batches in flight."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    def total(self, num_in_flight: Number) -> Number:
        """Peak with this many micro-batches in flight."""
        return self.fixed + self.workspace + num_in_flight * self.saved


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCosts:
    """What a StagePrice says of a stage by itself; see there."""

    forward_s: Number
    backward_s: Number
    input_grad_s: Number
    weight_grad_s: Number
    update_s: Number
    trained_bytes: Number
    tied_bytes: Number
    fixed_bytes: Number
    saved_bytes: Number
    saved_for_weights_bytes: Number
    workspace_bytes: Number

    @property
    def busy_s(self) -> Number:
        """Forward and whole backward."""
        return self.forward_s + self.backward_s


def bytes_per_trained_element(
    training: Training, element_bytes: int, copies: Copies = SINGLE
) -> tuple[int, int, int]:
    """Bytes of weights, gradient and optimizer for one trained element."""
    states = STATES_PER_PARAMETER[training.optimizer] + copies.directions
    weights = copies.versions * element_bytes
    if training.mixed:
        return weights, element_bytes, (states + 1) * WIDENED * element_bytes
    return weights, element_bytes, states * element_bytes


def count_update_bytes(training: Training, element_bytes: int) -> int:
    """Bytes that the optimizer step moves for one trained element."""
    weight, gradient, optimizer = bytes_per_trained_element(training, element_bytes)
    return 2 * weight + gradient + 2 * optimizer


def time_update(problem: Problem, device_type: DeviceType, trained_elements: Number) -> Number:
    """Seconds of the optimizer step."""
    if device_type.update_s_per_element is not None:
        return trained_elements * device_type.update_s_per_element
    traffic = trained_elements * count_update_bytes(problem.training, problem.element_bytes)
    launch_s = (trained_elements > 0) * device_type.launch_s
    law = device_type.laws.get("stream")
    share = law.figures.get("memory", 1.0) if law is not None else 1.0
    return launch_s + traffic / (device_type.bandwidth_bytes_per_s * share)


def count_memory(
    problem: Problem,
    sums: StageSums,
    *,
    recompute: bool = False,
    copies: Copies = SINGLE,
    sharing: Sharing = ALONE,
) -> StageMemory:
    """Bytes by purpose. Recomputation keeps what comes in, and makes the rest again in the
    workspace of its backward; a stage without backward saves nothing. Replicas share what their
    level says of the weights that no other stage can hold."""
    recompute = recompute or problem.recompute == "full"
    weight, gradient, optimizer = bytes_per_trained_element(
        problem.training, problem.element_bytes, copies
    )
    states, gradients, weights = (
        share_elements(sums, sharing, level) + sums.tied_elements for level in (1, 2, 3)
    )
    bucket = numpy.minimum(
        problem.training.bucket_bytes, sums.own_elements * problem.element_bytes
    ) * (sharing.replicas > 1)
    flat = NUM_BUCKETS * (2 if sharing.zero == 3 else 1) * bucket
    made = sums.saved_bytes * sums.trains
    saved = sums.entering_bytes * sums.trains if recompute else made
    least = numpy.minimum(saved, sums.saved_for_weights_bytes)
    return StageMemory(
        weights=weights * weight + sums.held_bytes,
        gradients=gradients * gradient,
        optimizer=states * optimizer,
        buffers=sums.entering_buffer_bytes + sums.leaving_buffer_bytes + flat,
        saved=saved,
        # Without an input half, what was saved waits for the weight gradients.
        saved_for_weights=numpy.where(sums.returns, least, saved) * sums.trains,
        workspace=sums.workspace_bytes + (made if recompute else 0),
    )


def share_elements(sums: StageSums, sharing: Sharing, level: int) -> Number:
    """Elements of the own weights of which a replica holds what is shared from `level` on."""
    if sharing.zero < level:
        return sums.own_elements
    return -(-sums.own_elements // sharing.replicas)


def price_sums(
    problem: Problem,
    sums: StageSums,
    types: Sequence[int],
    *,
    recompute: bool = False,
    copies: Copies = SINGLE,
    sharing: Sharing = ALONE,
) -> StageCosts:
    """Seconds and bytes of a stage by itself, on devices of these types.

    Recomputation adds one forward to the backward, to its input half where that is apart. Every
    task takes `task_s` more than its ops; a stage whose inputs need no gradient has no input half.
    """
    kinds = [problem.cluster.types[each] for each in types]
    task_s = max(kind.task_s for kind in kinds)
    again = sums.forward_s if recompute or problem.recompute == "full" else 0.0
    inputs = sums.returns * sums.input_grad_s
    weights = sums.weight_grad_s + (sums.input_grad_s - inputs)
    memory = count_memory(problem, sums, recompute=recompute, copies=copies, sharing=sharing)
    trained = sums.trained_elements
    updated = share_elements(sums, sharing, 1) + sums.tied_elements
    updates = [time_update(problem, kind, updated) for kind in kinds]
    return StageCosts(
        forward_s=sums.forward_s + task_s,
        backward_s=sums.trains * (again + inputs + weights + task_s),
        input_grad_s=sums.trains * (again + inputs + task_s),
        weight_grad_s=sums.trains * (weights + task_s),
        update_s=updates[0] if len(updates) == 1 else numpy.max(updates, axis=0),
        trained_bytes=trained * problem.element_bytes,
        tied_bytes=sums.tied_elements * problem.element_bytes,
        fixed_bytes=memory.fixed,
        saved_bytes=memory.saved,
        saved_for_weights_bytes=memory.saved_for_weights,
        workspace_bytes=memory.workspace,
    )


def leave_over(
    last_s: Number, num_buckets: Number, beside_s: Number, law: tuple[float, float]
) -> Number:
    """Seconds from where a backward of `beside_s` would end by itself to the end of a reduction in
    so many buckets of `last_s`, when gradients are complete at an even pace: all but the last one
    may run beside what follows the first. `Reduction.left_over` has it for the real pace."""
    slows, slowed = law
    others = numpy.maximum(num_buckets - 1, 0)
    room = beside_s * (others / numpy.maximum(num_buckets, 1)) * (1 + slows) / (1 + slowed)
    hidden = numpy.minimum(others * last_s, room)
    return hidden * (1 + slowed) * slows / (1 + slows) + num_buckets * last_s - hidden
