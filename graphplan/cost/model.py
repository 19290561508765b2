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
- Gradients of replicas are reduced in buckets while the last backward runs; the gradients of a node
  are complete when its own backward has ended. Those of weights that several nodes read are reduced
  after all: pessimistic where the nodes are in one stage.
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

import msgspec

from graphplan.cost.buckets import Reductions
from graphplan.cost.rows import Share, share_rows
from graphplan.cost.sums import (
    ALONE,
    SINGLE,
    Copies,
    Sharing,
    StageMemory,
    StageSums,
    count_memory,
    price_sums,
)
from graphplan.cost.work import MeanTimes, measure_times
from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import (
    Message,
    PricedStages,
    StagePrice,
    TransferPrice,
)
from graphplan.nouns.problem import Flow, Problem
from graphplan.nouns.stages import Stage, StageGraph, ZeroLevel

FLUSH = WeightPolicy()

Nodes = tuple[int, ...]
Devices = tuple[int, ...]


class CostModel:
    """Answers "how long, how much memory" for sets of nodes of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._price_by_stage: dict[tuple[Nodes, Devices, int, bool, Copies, int], StagePrice] = {}
        self._sums_by_stage: dict[tuple[Nodes, int, tuple[int, ...]], StageSums] = {}
        self.reductions = Reductions(problem)

    @cached_property
    def mean_times(self) -> MeanTimes:
        """Times of the mean device, for searches that do not know yet which they get."""
        return measure_times(self.problem)

    # -- stages by themselves --------------------------------------------------------------------

    def samples_per_replica(self, micro_batch_size: int, num_replicas: int) -> int:
        """Samples that one replica sees of a micro-batch."""
        if micro_batch_size % num_replicas:
            raise InvalidOption(
                f"A micro-batch of {micro_batch_size} cannot be split over {num_replicas} devices.",
                remedy=f"Use a micro-batch size that is a multiple of {num_replicas}.",
            )
        return micro_batch_size // num_replicas

    def sum_nodes(self, nodes: Sequence[int], samples: int, types: Sequence[int]) -> StageSums:
        """The sums of a set of nodes on a replica that sees so many samples of a micro-batch."""
        problem, chosen = self.problem, list(nodes)
        size = problem.size_index[samples]
        ties = [problem.ties[i] for i in self._touched(nodes, problem.ties_by_node)]
        saves = [problem.saves[i] for i in self._touched(nodes, problem.saves_by_node)]
        entering, leaving = self._crossing(nodes)
        received = [flow for flow in entering if flow.owner is not None]
        forward, inputs, weights = (
            max(float(array[kind, size, chosen].sum()) for kind in types)
            for array in (problem.forward_s, problem.input_grad_s, problem.weight_grad_s)
        )
        return StageSums(
            forward_s=forward,
            input_grad_s=inputs,
            weight_grad_s=weights,
            own_elements=int(problem.trained_elements[chosen].sum()),
            tied_elements=sum(tie.trained_elements for tie in ties),
            held_bytes=int(problem.held_bytes[chosen].sum()) + sum(tie.held_bytes for tie in ties),
            saved_bytes=int(problem.saved_bytes[size, chosen].sum())
            + sum(save.bytes_by_size[size] for save in saves),
            saved_for_weights_bytes=int(problem.saved_for_weights_bytes[size, chosen].sum()),
            workspace_bytes=int(problem.workspace_bytes[size, chosen].max(initial=0)),
            entering_bytes=sum(flow.bytes_by_size[size] for flow in entering),
            received_bytes=sum(flow.bytes_by_size[size] for flow in received),
            entering_buffer_bytes=sum(flow.buffer_bytes(size) for flow in received),
            leaving_buffer_bytes=sum(flow.buffer_bytes(size) for flow in leaving),
            trains=bool(problem.needs_backward[chosen].any()),
            returns=any(flow.needs_grad for flow in entering),
        )

    def stage_memory(
        self,
        nodes: Sequence[int],
        samples: int,
        *,
        recompute: bool = False,
        copies: Copies = SINGLE,
        sharing: Sharing = ALONE,
    ) -> StageMemory:
        """Bytes of a stage, by purpose, on one replica that sees `samples` of a micro-batch."""
        sums = self.sum_nodes(nodes, samples, (0,))
        return count_memory(self.problem, sums, recompute=recompute, copies=copies, sharing=sharing)

    def price_nodes(
        self,
        nodes: tuple[int, ...],
        devices: tuple[int, ...],
        micro_batch_size: int,
        *,
        recompute: bool = False,
        copies: Copies = SINGLE,
        zero: ZeroLevel | None = None,
    ) -> StagePrice:
        """The price of a stage by itself, at the usual level unless another one is given;
        remembered, because searches change few stages.

        Its own weights are reduced over its replicas; those that other stages hold, too, are not
        in it (price_stages adds them).
        """
        level = self.usual_sharing(len(devices)).zero if zero is None else zero
        key = (nodes, devices, micro_batch_size, recompute, copies, level)
        if key not in self._price_by_stage:
            self._price_by_stage[key] = self._price_nodes(*key)
        return self._price_by_stage[key]

    def _price_nodes(
        self,
        nodes: tuple[int, ...],
        devices: tuple[int, ...],
        micro_batch_size: int,
        recompute: bool,
        copies: Copies,
        zero: int,
    ) -> StagePrice:
        problem = self.problem
        sharing = Sharing(zero, self.reductions.count_replicas(len(devices)))
        samples = self.samples_per_replica(micro_batch_size, len(devices))
        types = tuple(sorted({problem.type_index_by_device[device] for device in devices}))
        sums = self._remember_sums(nodes, samples, types)
        costs = price_sums(
            problem, sums, types, recompute=recompute, copies=copies, sharing=sharing
        )
        price = StagePrice(
            devices=devices,
            micro_batch_size=micro_batch_size,
            forward_s=costs.forward_s,
            backward_s=costs.backward_s,
            input_grad_s=costs.input_grad_s,
            weight_grad_s=costs.weight_grad_s,
            reduction=self.reductions.fill_buckets(
                nodes, devices, samples, types, sums, costs, is_shared=zero > 0
            ),
            update_s=float(costs.update_s),
            trained_bytes=costs.trained_bytes,
            tied_bytes=costs.tied_bytes,
            fixed_bytes=int(costs.fixed_bytes),
            saved_bytes=costs.saved_bytes,
            saved_for_weights_bytes=int(costs.saved_for_weights_bytes),
            workspace_bytes=costs.workspace_bytes,
            needs_backward=sums.trains,
        )
        return self.reductions.share_weights(price, sums.own_elements * sums.trains, zero)

    def usual_sharing(self, num_replicas: int) -> Sharing:
        """What so many replicas share where a draft does not say it."""
        zero = self.problem.usual_zero if num_replicas > 1 else 0
        return Sharing(zero, self.reductions.count_replicas(num_replicas))

    def _remember_sums(
        self, nodes: tuple[int, ...], samples: int, types: tuple[int, ...]
    ) -> StageSums:
        """Sums do not depend on which devices of a type there are: moves of replicas keep them."""
        key = (nodes, samples, types)
        if key not in self._sums_by_stage:
            self._sums_by_stage[key] = self.sum_nodes(nodes, samples, types)
        return self._sums_by_stage[key]

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
            self._add_ties(graph, s, self._price_stage(stage, self._copies(policy, s)), policy)
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
        return self.price_nodes(
            self.stage_nodes(stage),
            stage.devices,
            stage.micro_batch_size,
            recompute=bool(stage.recompute),
            copies=copies,
            zero=stage.zero,
        )

    def _add_ties(
        self, graph: StageGraph, index: int, price: StagePrice, policy: WeightPolicy
    ) -> StagePrice:
        """The price with the reduction of tied gradients over all stages that hold them.

        The replicas' own reduction is in every `local_steps`-th batch; its mean counts.
        """
        problem = self.problem
        if not problem.ties and policy.name != "local":
            return price
        seconds = price.reduce_s
        if policy.name == "local":  # Weights are averaged after the update, all at once.
            own = self.reductions.time_all(price.devices, self._count_own(graph.stages[index]))
            price = msgspec.structs.replace(price, reduction=None)
            seconds = own / policy.local_steps
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
            seconds += self.reductions.time_all(devices, tie.trained_elements)
        return msgspec.structs.replace(price, reduce_s=seconds)

    def _count_own(self, stage: Stage) -> int:
        return int(self.problem.trained_elements[list(self.stage_nodes(stage))].sum())

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
