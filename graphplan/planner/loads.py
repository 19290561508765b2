"""Loads: seconds of the busiest device and of the busiest channel of priced stages."""

from __future__ import annotations

from graphplan.nouns.prices import PricedStages


def measure_channels(priced: PricedStages) -> float:
    """Seconds of one sample on the channel that carries most."""
    busy: dict[str, float] = {}
    for transfer in priced.transfers:
        size = priced.stages[transfer.src].micro_batch_size
        for message in transfer.messages:
            seconds = message.seconds / size
            busy[message.channel] = busy.get(message.channel, 0.0) + seconds
    return max(busy.values(), default=0.0)


def measure_busiest(priced: PricedStages) -> float:
    """Seconds of one sample on the busiest device."""

    def share(s: int) -> float:
        stage = priced.stages[s]
        return (stage.forward_s + stage.backward_s) / stage.micro_batch_size

    return max(sum(map(share, hosted)) for hosted in priced.stages_by_device)


def measure_load(priced: PricedStages, accumulate: int) -> float:
    """Seconds of one micro-batch on the busiest device, with its share of an update."""
    return max(
        sum(
            stage.forward_s + stage.backward_s + stage.closing_s / accumulate
            for stage in map(priced.stages.__getitem__, hosted)
        )
        for hosted in priced.stages_by_device
    )
