"""check_prices: refuse prices whose numbers no run can have, before they become arrays."""

from __future__ import annotations

from typing import NoReturn

from graphplan.errors import InvalidProgram
from graphplan.nouns.prices import PricedStages, StagePrice, TransferPrice

MAX_SAMPLES = 1 << 40
MAX_BYTES = 1 << 60
MAX_SECONDS = 1e15


def check_prices(priced: PricedStages) -> None:
    """Raise InvalidProgram for the first number that is out of range."""
    for s, stage in enumerate(priced.stages):
        _check_stage(s, stage)
    for transfer in priced.transfers:
        _check_transfer(priced, transfer)
    _check_edges(priced)


def _check_stage(s: int, stage: StagePrice) -> None:
    seconds = (
        stage.forward_s,
        stage.backward_s,
        stage.input_grad_s,
        stage.weight_grad_s,
        stage.reduce_s,
        stage.update_s,
        *_list_seconds(stage),
    )
    if not all(0 <= each < MAX_SECONDS for each in seconds):
        _refuse(f"stage {s} has a time that is negative or absurd")
    sizes = (
        stage.trained_bytes,
        stage.tied_bytes,
        stage.fixed_bytes,
        stage.saved_bytes,
        stage.saved_for_weights_bytes,
        stage.workspace_bytes,
    )
    if not all(0 <= each < MAX_BYTES for each in sizes):
        _refuse(f"stage {s} has bytes that are negative or beyond {MAX_BYTES:,}")
    if stage.micro_batch_size > MAX_SAMPLES:
        _refuse(f"stage {s} has micro-batches of more than {MAX_SAMPLES:,} samples")
    if len(set(stage.devices)) != len(stage.devices):
        _refuse(f"stage {s} names a device twice")


def _list_seconds(stage: StagePrice) -> list[float]:
    """What its buckets take and slow."""
    law = stage.reduction
    if law is None:
        return []
    times = [(each.seconds, each.backward_s, each.weight_grad_s) for each in law.buckets]
    return [law.slows, law.slowed, *(each for row in times for each in row)]


def _check_transfer(priced: PricedStages, transfer: TransferPrice) -> None:
    src, dst = transfer.src, transfer.dst
    if transfer.backward != (src > dst):
        _refuse(f"transfer {src}>{dst} runs against its direction")
    for message in transfer.messages:
        if message.src not in priced.stages[src].devices:
            _refuse(f"a message of {src}>{dst} leaves a device that does not host stage {src}")
        if message.dst not in priced.stages[dst].devices:
            _refuse(f"a message of {src}>{dst} reaches a device that does not host stage {dst}")
        if not all(0 <= each < MAX_SECONDS for each in (message.seconds, message.latency_s)):
            _refuse(f"a message of {src}>{dst} has a time that is negative or absurd")


def _check_edges(priced: PricedStages) -> None:
    """Edges between different devices have a transfer; one without messages makes nobody wait."""
    pairs = [*priced.edges, *((dst, src) for src, dst in priced.backward_edges)]
    for src, dst in pairs:
        transfer = priced.transfer_by_ends.get((src, dst))
        reached = {message.dst for message in transfer.messages} if transfer else set()
        missing = set(priced.stages[dst].devices) - set(priced.stages[src].devices) - reached
        if missing and (reached or transfer is None):
            raise InvalidProgram(
                f"The prices have no message from stage {src} to stage {dst} on device"
                f" {min(missing)}.",
                remedy="Give every edge between different devices a transfer that reaches all of"
                " the reader's devices.",
            )


def _refuse(what: str) -> NoReturn:
    raise InvalidProgram(f"The prices make no sense: {what}.", remedy="Price the stages again.")
