"""The cost model: the only place where seconds and bytes of stages are computed.

Assumptions, and when they break:

- Ops of a stage run one after the other, so that a stage takes the sum of its ops. Breaks when a
  compiler fuses across ops or streams overlap; a measured table's calibration absorbs the mean.
- Replicas split a micro-batch evenly and are equally fast: the slowest device type counts.
- The backward is the input-gradient half plus the weight-gradient half. Recomputation adds one
  forward to the backward (to the input half when it is split).
- A task takes what the runtime needs for it (`task_s`) beyond its ops. Where processors carry the
  messages, sender's and receiver's tasks take longer by that (`host_s`), the transfer shorter.
- A stage whose inputs need no gradient has no input half: all of its backward is in the other one.
- A transfer takes latency + bytes / bandwidth on its channel. A tensor is sent once to a device
  however many ops read it. Rows are spread evenly, also when micro-batch sizes differ.
- Gradients are reduced after the last backward, not overlapped with it: pessimistic for replicas.
- The optimizer step takes what was measured of the model file's own; without one it is bound by
  memory bandwidth: weights, gradients and states are read, weights and states written.
- What the weight gradients still need after the input gradients (their ops' inputs and output
  gradients) takes the room of what was saved, never more.
- Memory: see nouns/prices.py. Saved tensors are counted by storage, once for a stage. Every tensor
  that crosses a stage's border has one buffer for the activation and one for its gradient.
  Allocator fragmentation is not modelled; `usable_memory` of the cluster leaves room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.rows import Share, share_rows
from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.nouns.problem import Flow, Problem
from graphplan.nouns.stages import Stage, StageGraph
from graphplan.nouns.training import STATES_PER_PARAMETER, Training

FLUSH = WeightPolicy()
WIDENED = 2
"""Width of an optimizer state or master weight under mixed precision over that of a weight: 32 bits
for 16, and on the safe side where weights stay wider (complex ones)."""


class StageMemory(Noun, frozen=True, kw_only=True):
    """Bytes of a stage on one replica, by purpose."""

    weights: int
    """Trained weights in all their versions, and frozen ones."""
    gradients: int
    optimizer: int
    buffers: int
    saved: int
    """Of one in-flight micro-batch."""
    saved_for_weights: int
    workspace: int

    @property
    def fixed(self) -> int:
        """What does not depend on the micro-batches in flight."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    def total(self, num_in_flight: int) -> int:
        """Peak with this many micro-batches in flight."""
        return self.fixed + self.workspace + num_in_flight * self.saved


class Copies(NamedTuple):
    """How often a policy holds the trained weights of a stage."""

    versions: int = 1
    directions: int = 0
    """Buffers for directions that the optimizer does not keep; they count as its states."""


def bytes_per_trained_element(
    training: Training, element_bytes: int, *, num_versions: int = 1, num_directions: int = 0
) -> tuple[int, int, int]:
    """Bytes of weights, gradient and optimizer for one trained element."""
    states = STATES_PER_PARAMETER[training.optimizer] + num_directions
    if training.mixed:
        return num_versions * element_bytes, element_bytes, (states + 1) * WIDENED * element_bytes
    return num_versions * element_bytes, element_bytes, states * element_bytes


def count_update_bytes(training: Training, element_bytes: int) -> int:
    """Bytes that the optimizer step moves for one trained element."""
    weight, gradient, optimizer = bytes_per_trained_element(training, element_bytes)
    return 2 * weight + gradient + 2 * optimizer


class CostModel:
    """Answers "how long, how much memory" for sets of nodes of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._price_by_stage: dict[tuple[Stage, Copies], StagePrice] = {}

    # -- times -----------------------------------------------------------------------------------

    def samples_per_replica(self, micro_batch_size: int, num_replicas: int) -> int:
        """Samples that one replica sees of a micro-batch."""
        if micro_batch_size % num_replicas:
            raise InvalidOption(
                f"A micro-batch of {micro_batch_size} cannot be split over {num_replicas} devices.",
                remedy=f"Use a micro-batch size that is a multiple of {num_replicas}.",
            )
        return micro_batch_size // num_replicas

    def stage_times(
        self, nodes: Sequence[int], devices: Sequence[int], micro_batch_size: int
    ) -> tuple[float, float, float]:
        """Forward, input-gradient and weight-gradient seconds of one micro-batch."""
        problem = self.problem
        size = problem.size_index[self.samples_per_replica(micro_batch_size, len(devices))]
        types = sorted({problem.type_index_by_device[device] for device in devices})
        forward, inputs, weights = (
            max(float(array[kind, size, list(nodes)].sum()) for kind in types)
            for array in (problem.forward_s, problem.input_grad_s, problem.weight_grad_s)
        )
        return forward, inputs, weights

    def update_time(self, device_type: DeviceType, trained_elements: int) -> float:
        """Seconds of the optimizer step."""
        if not trained_elements:
            return 0.0
        if device_type.update_s_per_element is not None:
            return trained_elements * device_type.update_s_per_element
        traffic = trained_elements * count_update_bytes(
            self.problem.training, self.problem.element_bytes
        )
        law = device_type.laws.get("stream")
        share = law.figures.get("memory", 1.0) if law is not None else 1.0
        return device_type.launch_s + traffic / (device_type.bandwidth_bytes_per_s * share)

    def message(self, src: int, dst: int, num_bytes: int) -> Message:
        """Bytes on their way between two devices."""
        cluster = self.problem.cluster
        link = cluster.link_between(src, dst)
        return Message(
            src=src,
            dst=dst,
            bytes=num_bytes,
            seconds=num_bytes / link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
            channel=cluster.channel_between(src, dst),
        )

    # -- memory ----------------------------------------------------------------------------------

    def trained_elements(self, nodes: Sequence[int]) -> int:
        """Elements of trainable weights that a stage holds, tied ones once."""
        own = int(self.problem.trained_elements[list(nodes)].sum())
        ties = self._touched(nodes, self.problem.ties_by_node)
        return own + sum(self.problem.ties[i].trained_elements for i in ties)

    def stage_memory(
        self,
        nodes: Sequence[int],
        samples: int,
        *,
        recompute: bool = False,
        num_versions: int = 1,
        num_directions: int = 0,
    ) -> StageMemory:
        """Bytes of a stage on one replica that sees `samples` of every micro-batch."""
        problem, chosen = self.problem, list(nodes)
        size = problem.size_index[samples]
        ties = [problem.ties[i] for i in self._touched(nodes, problem.ties_by_node)]
        trained = self.trained_elements(nodes)
        weight, gradient, optimizer = bytes_per_trained_element(
            problem.training,
            problem.element_bytes,
            num_versions=num_versions,
            num_directions=num_directions,
        )
        held = int(problem.held_bytes[chosen].sum()) + sum(tie.held_bytes for tie in ties)
        saved = int(problem.saved_bytes[size, chosen].sum()) + sum(
            problem.saves[i].bytes_by_size[size]
            for i in self._touched(nodes, problem.saves_by_node)
        )
        workspace = int(problem.workspace_bytes[size, chosen].max(initial=0))
        entering, leaving = self._crossing(nodes)
        if recompute:
            workspace += saved
            saved = sum(flow.bytes_by_size[size] for flow in entering)
        return StageMemory(
            weights=trained * weight + held,
            gradients=trained * gradient,
            optimizer=trained * optimizer,
            buffers=sum(
                flow.bytes_by_size[size] * (2 if flow.needs_grad else 1)
                for flow in (*entering, *leaving)
                if flow.owner is not None
            ),
            saved=saved,
            saved_for_weights=min(saved, int(problem.saved_for_weights_bytes[size, chosen].sum())),
            workspace=workspace,
        )

    def _touched(self, nodes: Iterable[int], by_node: Sequence[Sequence[int]]) -> list[int]:
        return sorted({i for node in nodes for i in by_node[node]})

    def _crossing(self, nodes: Sequence[int]) -> tuple[list[Flow], list[Flow]]:
        """Flows that enter and that leave a set of nodes."""
        inside = set(nodes)
        entering, leaving = [], []
        for i in self._touched(nodes, self.problem.flows_by_node):
            flow = self.problem.flows[i]
            if flow.owner not in inside:
                entering.append(flow)
            elif not inside.issuperset(flow.readers):
                leaving.append(flow)
        return entering, leaving

    # -- whole stage graphs ----------------------------------------------------------------------

    @cached_property
    def node_by_op(self) -> dict[str, int]:
        """Number of the node that holds each op."""
        return {op: i for i, node in enumerate(self.problem.nodes) for op in node.ops}

    def stage_nodes(self, stage: Stage) -> tuple[int, ...]:
        """The nodes of a stage."""
        return tuple(sorted({self.node_by_op[op] for op in stage.ops}))

    def price_stages(self, graph: StageGraph, policy: WeightPolicy = FLUSH) -> PricedStages:
        """Seconds and bytes of a stage graph, all that schedules and simulator need."""
        pairs = sorted({(edge.src, edge.dst) for edge in graph.edges})
        backward = sorted({(edge.src, edge.dst) for edge in graph.edges if edge.needs_grad})
        transfers = [self._price_transfer(graph, src, dst, backward=False) for src, dst in pairs]
        transfers += [self._price_transfer(graph, dst, src, backward=True) for src, dst in backward]
        stages = [
            self._add_ties(
                graph, s, self._price_stage(stage, self._copies(policy, s)), policy.local_steps
            )
            for s, stage in enumerate(graph.stages)
        ]
        return PricedStages(
            batch_size=self.problem.training.batch_size,
            stages=tuple(self._add_messages(stages, transfers)),
            edges=tuple(pairs),
            backward_edges=tuple(backward),
            transfers=tuple(transfers),
            memory_bytes_by_device=tuple(
                device.memory_bytes for device in self.problem.cluster.devices
            ),
        )

    def _copies(self, policy: WeightPolicy, stage: int) -> Copies:
        directions = policy.num_directions(stage, self.problem.training.optimizer)
        return Copies(policy.num_versions(stage), directions)

    def _price_stage(self, stage: Stage, copies: Copies) -> StagePrice:
        """The price of a stage by itself; remembered, because searches change few stages."""
        key = (stage, copies)
        if key not in self._price_by_stage:
            self._price_by_stage[key] = self._compute_price(stage, copies)
        return self._price_by_stage[key]

    def _compute_price(self, stage: Stage, copies: Copies) -> StagePrice:
        problem, own = self.problem, self.stage_nodes(stage)
        samples = self.samples_per_replica(stage.micro_batch_size, len(stage.devices))
        forward, inputs, weights = self.stage_times(own, stage.devices, stage.micro_batch_size)
        again = forward if stage.recompute else 0.0
        memory = self.stage_memory(
            own,
            samples,
            recompute=stage.recompute,
            num_versions=copies.versions,
            num_directions=copies.directions,
        )
        trained = self.trained_elements(own)
        trains = bool(problem.needs_backward[list(own)].any())
        types = [
            problem.cluster.types[t]
            for t in {problem.type_index_by_device[device] for device in stage.devices}
        ]
        task_s = max(each.task_s for each in types)
        kept = memory.saved_for_weights
        if not any(flow.needs_grad for flow in self._crossing(own)[0]):
            inputs, weights, kept = 0.0, inputs + weights, memory.saved
        own_bytes = int(problem.trained_elements[list(own)].sum()) * problem.element_bytes
        return StagePrice(
            devices=stage.devices,
            micro_batch_size=stage.micro_batch_size,
            forward_s=forward + task_s,
            backward_s=again + inputs + weights + task_s if trains else 0.0,
            input_grad_s=again + inputs + task_s if trains else 0.0,
            weight_grad_s=weights + task_s if trains else 0.0,
            reduce_s=allreduce_time(problem.cluster, stage.devices, own_bytes),
            update_s=max(self.update_time(each, trained) for each in types),
            trained_bytes=trained * problem.element_bytes,
            fixed_bytes=memory.fixed,
            saved_bytes=memory.saved if trains else 0,
            saved_for_weights_bytes=kept if trains else 0,
            workspace_bytes=memory.workspace,
            needs_backward=trains,
        )

    def _add_ties(
        self, graph: StageGraph, index: int, price: StagePrice, local_steps: int
    ) -> StagePrice:
        """The price with the reduction of tied gradients over all stages that hold them.

        The replicas' own reduction is in every `local_steps`-th batch; its mean counts.
        """
        problem = self.problem
        if not problem.ties and local_steps == 1:
            return price
        seconds = price.reduce_s / local_steps
        for i in self._touched(self.stage_nodes(graph.stages[index]), problem.ties_by_node):
            tie = problem.ties[i]
            devices = sorted(
                {
                    device
                    for stage in graph.stages
                    if not set(self.stage_nodes(stage)).isdisjoint(tie.readers)
                    for device in stage.devices
                }
            )
            tie_bytes = tie.trained_elements * problem.element_bytes
            seconds += allreduce_time(problem.cluster, devices, tie_bytes)
        return msgspec.structs.replace(price, reduce_s=seconds)

    def _add_messages(
        self, stages: Sequence[StagePrice], transfers: Iterable[TransferPrice]
    ) -> Iterable[StagePrice]:
        """The prices with what messages take from the tasks at both ends, on the busiest device.

        A transfer is that of a micro-batch of its sender, which may be part of one of the receiver.
        """
        cluster = self.problem.cluster
        if not any(link.host_s or link.host_s_per_byte for link in cluster.links):
            return stages
        lost: dict[tuple[int, bool], dict[int, float]] = {}
        for transfer in transfers:
            sizes = [stages[s].micro_batch_size for s in (transfer.src, transfer.dst)]
            for message in transfer.messages:
                seconds = cluster.link_between(message.src, message.dst).host_time(message.bytes)
                for stage, device, share in (
                    (transfer.src, message.src, 1.0),
                    (transfer.dst, message.dst, sizes[1] / sizes[0]),
                ):
                    by_device = lost.setdefault((stage, transfer.backward), {})
                    by_device[device] = by_device.get(device, 0.0) + share * seconds
        most = {key: max(by_device.values()) for key, by_device in lost.items()}
        return [
            msgspec.structs.replace(
                price,
                forward_s=price.forward_s + most.get((s, False), 0.0),
                backward_s=price.backward_s + most.get((s, True), 0.0),
                input_grad_s=price.input_grad_s + most.get((s, True), 0.0),
            )
            for s, price in enumerate(stages)
        ]

    def _price_transfer(
        self, graph: StageGraph, src: int, dst: int, *, backward: bool
    ) -> TransferPrice:
        """What the sender's replicas send the receiver's for one micro-batch of the sender."""
        sender, receiver = graph.stages[src], graph.stages[dst]
        ends = (dst, src) if backward else (src, dst)
        edges = [edge for edge in graph.edges_by_ends[ends] if edge.needs_grad or not backward]
        size = sender.micro_batch_size
        spread = sum(edge.spec.num_bytes(size) for edge in edges if edge.spec.has_batch)
        whole = sum(edge.spec.num_bytes(size) for edge in edges if not edge.spec.has_batch)
        shares = (
            []
            if sender.devices == receiver.devices
            else share_rows(len(sender.devices), len(receiver.devices))
        )
        messages = (self._share_message(sender, receiver, each, spread, whole) for each in shares)
        return TransferPrice(
            src=src,
            dst=dst,
            backward=backward,
            messages=tuple(each for each in messages if each.bytes),
        )

    def _share_message(
        self, sender: Stage, receiver: Stage, share: Share, spread: int, whole: int
    ) -> Message:
        num_bytes = -(-spread * share.rows // share.all_rows) + (whole if share.leads else 0)
        return self.message(sender.devices[share.src], receiver.devices[share.dst], num_bytes)
