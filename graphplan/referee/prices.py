"""Rules for prices: they describe these stages on this cluster, with numbers that can be."""

from __future__ import annotations

from fractions import Fraction

from graphplan.nouns.cluster import Cluster
from graphplan.nouns.prices import PricedStages, StagePrice, TransferPrice
from graphplan.nouns.stages import StageGraph
from graphplan.nouns.training import Training
from graphplan.referee.buckets import judge_buckets
from graphplan.referee.stages import judge_devices
from graphplan.referee.verdict import Findings

SECONDS = ("forward_s", "backward_s", "input_grad_s", "weight_grad_s", "reduce_s", "update_s")
MAX_VALUE = 1 << 62
"""Seconds and bytes beyond this are mistakes."""
BYTES = (
    "trained_bytes",
    "tied_bytes",
    "fixed_bytes",
    "saved_bytes",
    "saved_for_weights_bytes",
    "workspace_bytes",
)


def judge_prices(priced: PricedStages, findings: Findings) -> None:
    """What must hold for prices alone: devices, numbers, a transfer for every edge."""
    devices = [stage.devices for stage in priced.stages]
    judge_devices(devices, len(priced.memory_bytes_by_device), findings)
    for s, stage in enumerate(priced.stages):
        _judge_values(s, stage, findings)
    for src, dst in priced.backward_edges:
        for s in (src, dst):
            if not priced.stages[s].needs_backward:
                findings.add(
                    "price-edges",
                    f"edge {src} -> {dst}",
                    f"a gradient comes back along it, but stage {s} runs no backward.",
                )
    judge_buckets(priced, findings)
    _judge_transfers(priced, findings)


def compare_prices(
    priced: PricedStages, stages: StageGraph, training: Training, findings: Findings
) -> None:
    """Prices and stage graph speak of the same stages, edges and batch."""
    if len(priced.stages) != len(stages.stages):
        findings.add(
            "price-stages",
            "prices",
            f"{len(priced.stages)} stages have prices, the stage graph has {len(stages.stages)}.",
        )
        return
    if priced.batch_size != training.batch_size:
        findings.add(
            "price-batch",
            "prices",
            f"a batch of {priced.batch_size} samples; the training has {training.batch_size}.",
        )
    for s, (price, stage) in enumerate(zip(priced.stages, stages.stages, strict=True)):
        if price.devices != stage.devices:
            findings.add(
                "price-stages",
                f"stage {s}",
                f"priced on devices {list(price.devices)}, placed on {list(stage.devices)}.",
            )
        if price.micro_batch_size != stage.micro_batch_size:
            findings.add(
                "price-stages",
                f"stage {s}",
                f"priced for micro-batches of {price.micro_batch_size} samples, planned with"
                f" {stage.micro_batch_size}.",
            )
    edges = {(edge.src, edge.dst) for edge in stages.edges}
    backward = {(edge.src, edge.dst) for edge in stages.edges if edge.needs_grad}
    _compare_edges(set(priced.edges), edges, "edge", findings)
    _compare_edges(set(priced.backward_edges), backward, "gradient edge", findings)


def judge_cluster(
    priced: PricedStages, stages: StageGraph, cluster: Cluster, findings: Findings
) -> None:
    """Devices are those of the cluster, with no more memory than it has."""
    types = {kind.name: kind for kind in cluster.types}
    kinds = [types[name] for node in cluster.nodes for name in node.devices]
    judge_devices([stage.devices for stage in stages.stages], len(kinds), findings)
    if len(kinds) != len(priced.memory_bytes_by_device):
        findings.add(
            "device-exists",
            "prices",
            f"prices are for {len(priced.memory_bytes_by_device)} devices, the cluster has"
            f" {len(kinds)}.",
        )
        return
    for device, (given, kind) in enumerate(zip(priced.memory_bytes_by_device, kinds, strict=True)):
        usable = int(kind.memory_bytes * Fraction(cluster.usable_memory))
        if given > usable + 1:  # one byte for the rounding of whoever multiplied in floats
            findings.add(
                "price-memory",
                f"device {device}",
                f"{given:,} bytes are planned with, {usable:,} of its {kind.memory_bytes:,} are"
                " usable.",
            )


def _compare_edges(
    priced: set[tuple[int, int]], planned: set[tuple[int, int]], what: str, findings: Findings
) -> None:
    for src, dst in sorted(planned - priced):
        findings.add("price-edges", f"edge {src} -> {dst}", f"the {what} has no price.")
    for src, dst in sorted(priced - planned):
        findings.add(
            "price-edges", f"edge {src} -> {dst}", f"the {what} is priced, but not in the stages."
        )


def _judge_values(s: int, stage: StagePrice, findings: Findings) -> None:
    for name in (*SECONDS, *BYTES):
        value = getattr(stage, name)
        if not _is_sane(value):
            findings.add("price-values", f"stage {s}", f"{name} is {_show(value)}.")
    if stage.saved_for_weights_bytes > stage.saved_bytes:
        findings.add(
            "price-values",
            f"stage {s}",
            f"keeps {stage.saved_for_weights_bytes:,} bytes after the input gradients, but saves"
            f" only {stage.saved_bytes:,} before.",
        )


def _is_sane(value: float) -> bool:
    return 0 <= value < MAX_VALUE


def _show(value: float) -> str:
    """Text of a number; those with thousands of digits would not print."""
    return str(value) if -MAX_VALUE < value < MAX_VALUE or value != value else "out of range"


def _judge_transfers(priced: PricedStages, findings: Findings) -> None:
    needed = dict.fromkeys(priced.edges, False)
    needed |= {(dst, src): True for src, dst in priced.backward_edges}
    seen: set[tuple[int, int]] = set()
    for each in priced.transfers:
        ends, place = (each.src, each.dst), f"transfer {each.src}>{each.dst}"
        if needed.get(ends) is not each.backward:
            findings.add(
                "price-transfers",
                place,
                f"is priced as {'backward' if each.backward else 'forward'}, but no"
                f" {'gradient' if each.backward else 'activation'} passes from stage {each.src} to"
                f" stage {each.dst}.",
            )
            continue
        if ends in seen:
            findings.add("price-transfers", place, "is priced twice.")
        seen.add(ends)
        _judge_messages(priced, each, findings)
    for src, dst in needed:
        apart = set(priced.stages[src].devices) != set(priced.stages[dst].devices)
        if apart and (src, dst) not in seen:
            findings.add(
                "price-transfers",
                f"transfer {src}>{dst}",
                "has no price, although the stages are on different devices.",
            )


def _judge_messages(priced: PricedStages, transfer: TransferPrice, findings: Findings) -> None:
    place = f"transfer {transfer.src}>{transfer.dst}"
    senders, readers = priced.stages[transfer.src].devices, priced.stages[transfer.dst].devices
    for message in transfer.messages:
        if message.src not in senders or message.dst not in readers or message.src == message.dst:
            findings.add(
                "price-transfers",
                place,
                f"a message runs from device {message.src} to {message.dst}; the stages are on"
                f" {list(senders)} and {list(readers)}.",
            )
        for value in (message.bytes, message.seconds, message.latency_s):
            if not _is_sane(value):
                findings.add("price-values", place, f"a message has the value {_show(value)}.")
    pairs = [(message.src, message.dst) for message in transfer.messages]
    if len(set(pairs)) != len(pairs):
        findings.add("price-transfers", place, "two messages have the same two devices.")
    if set(senders) != set(readers):
        missing = sorted(set(readers) - {dst for _, dst in pairs}) if pairs else []
        for device in missing:  # a transfer without any message carries no bytes
            findings.add("price-transfers", place, f"no message reaches device {device}.")
