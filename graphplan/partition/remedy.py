"""Remedies: why nothing fits, and what would make it fit, found by trying.

Every attempt packs the nodes, in their order, into a pipeline from its end: the last stage takes as
much as fits with one micro-batch in flight, the one before it as much as fits with two, and so on,
one device each. What is advised was packed this way, so that it works.
"""

from __future__ import annotations

import dataclasses

import msgspec

from graphplan.cost.cuts import OrderCuts
from graphplan.cost.model import CostModel
from graphplan.cost.sums import Copies, StageCosts, bytes_per_trained_element
from graphplan.errors import NoFeasiblePlan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.problem import Ints, Problem
from graphplan.partition.dag.linear import make_blocks, weigh_flows

MAX_BLOCKS = 256
MOST_TIMES_DEVICES = 64
"""Clusters up to so many times larger are tried."""


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """Conditions under which packing is tried."""

    samples: int
    recompute: bool
    num_devices: int
    memory_bytes: int


def explain_infeasible(problem: Problem, *, policy: WeightPolicy, planner: str) -> NoFeasiblePlan:
    """The error for a problem of which `planner` found no plan that fits."""
    packer = _Packer(problem, policy)
    given = packer.list_given()
    working = next((attempt for attempt in given if packer.fits(attempt)), None)
    if working is not None:
        other = "chain" if planner in ("graph", "auto") else "auto"
        known = (
            f"A pipeline with micro-batches of {working.samples}"
            f"{' and recomputation' if working.recompute else ''} fits: use"
        )
        return NoFeasiblePlan(
            f"The planner {planner!r} found nothing that fits into {_gib(working.memory_bytes)} a"
            " device.",
            remedy=f"{known} --planner {other}.",
        )
    best = min(given, key=packer.least_memory)
    return NoFeasiblePlan(_describe(packer, best), remedy=_advise(packer, best))


def _describe(packer: _Packer, attempt: _Attempt) -> str:
    """The fullest stage of the most even packing."""
    least = packer.least_memory(attempt)
    first, last, height, in_flight = packer.fullest_stage(attempt, least)
    problem = packer.problem
    nodes = packer.cuts.nodes_of(first, last)
    copies = packer.count_copies(height)
    memory = packer.cost.stage_memory(
        nodes,
        attempt.samples,
        recompute=attempt.recompute,
        copies=copies,
    )
    names = f"{problem.nodes[nodes[0]].name!r}"
    if len(nodes) > 1:
        names += f" to {problem.nodes[nodes[-1]].name!r}"
    flight = f"{in_flight} micro-batch{'es' if in_flight > 1 else ''} of {attempt.samples}"
    return (
        f"Nothing fits into {attempt.num_devices} devices of {_gib(attempt.memory_bytes)}: cut as"
        f" evenly as possible, the stage {names} needs {_gib(memory.total(in_flight))}"
        f" ({_gib(memory.weights)} weights{_count_versions(copies, packer.policy)},"
        f" {_gib(memory.gradients)} gradients,"
        f" {_gib(memory.optimizer)} optimizer, {_gib(memory.buffers + memory.workspace)} buffers"
        f" and workspace, {_gib(in_flight * memory.saved)} for {flight}"
        f"{', recomputed' if attempt.recompute else ''})."
    )


def _count_versions(copies: Copies, policy: WeightPolicy) -> str:
    return f" in {copies.versions} versions of {policy.name}" if copies.versions > 1 else ""


def _advise(packer: _Packer, attempt: _Attempt) -> str:
    """Every single change that makes it fit, else what all of them together still need."""
    advice = []
    if packer.count_copies(attempt.num_devices - 1) != Copies():
        flush = _Packer(packer.problem, WeightPolicy())
        if flush.fits(attempt):
            advice.append("use --policy flush")
    if not attempt.recompute and packer.fits(dataclasses.replace(attempt, recompute=True)):
        advice.append("allow recomputation")
    for samples in sorted(packer.problem.sample_sizes, reverse=True):
        smaller = dataclasses.replace(attempt, samples=samples)
        if samples < attempt.samples and packer.fits(smaller):
            advice.append(f"use --micro-batch {samples}")
            break
    for recompute in sorted({attempt.recompute, True}):
        again = dataclasses.replace(attempt, recompute=recompute)
        num_devices = packer.least_devices(again)
        if num_devices is not None and num_devices > attempt.num_devices:
            also = " and recomputation" if recompute and not attempt.recompute else ""
            advice.append(f"use --gpus {num_devices}{also}")
            break
    advice.append(f"use devices with {_gib(packer.least_memory(attempt))} of usable memory")
    text = ", or ".join(advice)
    return f"{text[0].upper()}{text[1:]}."


class _Packer:
    """Packs one order of the nodes under different conditions."""

    def __init__(self, problem: Problem, policy: WeightPolicy) -> None:
        self.problem = problem
        self.policy = policy
        work = problem.forward_s[0, -1] + 1e-12
        order, tensors = range(problem.num_nodes), weigh_flows(problem)
        blocks = make_blocks(order, work, tensors, max_blocks=MAX_BLOCKS)
        self.cost = CostModel(problem)
        self.cuts = OrderCuts(self.cost, blocks)
        self.devices = problem.cluster.devices

    def list_given(self) -> list[_Attempt]:
        """The user's own conditions: every micro-batch size, with and without recomputation."""
        return [
            _Attempt(
                samples=samples,
                recompute=recompute,
                num_devices=len(self.devices),
                memory_bytes=max(device.memory_bytes for device in self.devices),
            )
            for samples in self.problem.micro_batch_sizes
            for recompute in sorted({False, self.problem.allow_recompute})
        ]

    def fits(self, attempt: _Attempt) -> bool:
        """Whether a pipeline of at most so many stages holds everything."""
        stages = self.pack(attempt, most=attempt.num_devices)
        return stages is not None

    def count_copies(self, height: int) -> Copies:
        """How often a policy holds the weights of a stage with so many stages behind it."""
        if self.policy.is_synchronous:
            return Copies()
        policy = msgspec.structs.replace(self.policy, warmups=tuple(range(height, -1, -1)))
        optimizer = self.problem.training.optimizer
        return Copies(policy.num_versions(0), policy.num_directions(0, optimizer))

    def _copied_bytes(self, height: int) -> int:
        """Bytes of a trained element beyond those of one copy."""
        training, size = self.problem.training, self.problem.element_bytes
        copies = self.count_copies(height)
        held = bytes_per_trained_element(training, size, copies)
        return sum(held) - sum(bytes_per_trained_element(training, size))

    def _count_bytes(self, attempt: _Attempt, height: int) -> Ints:
        """Bytes of every stage with so many stages behind it."""
        index = self.problem.size_index[attempt.samples]
        costs: StageCosts = self.cuts.costs(index, (0,), recompute=attempt.recompute)
        copied = self._copied_bytes(height) * self.cuts.sums(index, (0,)).trained_elements
        saved = self._count_in_flight(attempt, height) * costs.saved_bytes
        total: Ints = costs.fixed_bytes + costs.workspace_bytes + saved + copied
        return total

    def _count_in_flight(self, attempt: _Attempt, height: int) -> int:
        return min(height + 1, max(1, self.problem.training.batch_size // attempt.samples))

    def pack(self, attempt: _Attempt, *, most: int) -> list[tuple[int, int]] | None:
        """Intervals from the first stage to the last, None when more than `most` are needed."""
        stages: list[tuple[int, int]] = []
        last = self.cuts.num_items
        while last > 0:
            needed = self._count_bytes(attempt, len(stages))[:last, last]
            fitting = (needed <= attempt.memory_bytes).nonzero()[0]
            if not len(fitting) or len(stages) == most:
                return None
            first = int(fitting[0])
            stages.append((first, last))
            last = first
        return stages[::-1]

    def least_devices(self, attempt: _Attempt) -> int | None:
        """Devices that hold everything, None when more than can sensibly be had."""
        stages = self.pack(attempt, most=MOST_TIMES_DEVICES * attempt.num_devices)
        return None if stages is None else len(stages)

    def least_memory(self, attempt: _Attempt) -> int:
        """Bytes by device with which the devices suffice, to about one percent."""
        high = attempt.memory_bytes
        while not self.fits(dataclasses.replace(attempt, memory_bytes=high)):
            high *= 2
        low = high // 2 if high > attempt.memory_bytes else 0
        while high - low > max(1, high // 128):
            middle = (low + high) // 2
            if self.fits(dataclasses.replace(attempt, memory_bytes=middle)):
                high = middle
            else:
                low = middle
        return high

    def fullest_stage(self, attempt: _Attempt, memory_bytes: int) -> tuple[int, int, int, int]:
        """Of the stage that needs most: first and last block, stages behind it, micro-batches."""
        packed = self.pack(
            dataclasses.replace(attempt, memory_bytes=memory_bytes), most=attempt.num_devices
        )
        assert packed is not None, "least_memory packs"
        loads = []
        for s, (first, last) in enumerate(packed):
            height = len(packed) - s - 1
            total = int(self._count_bytes(attempt, height)[first, last])
            in_flight = self._count_in_flight(attempt, height)
            loads.append((total, first, last, height, in_flight))
        return max(loads)[1:]


def _gib(num_bytes: int) -> str:
    """`1.5 GiB`, or a smaller unit where that reads better."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes} B"
