"""Sequential pipelines: stages that run one after another, also where the model has branches.

The published sequential planners (PipeDream, Piper) hand every micro-batch from stage to stage in
one line; a stage waits for the one before it even if it reads nothing from it. The same cut may run
faster with its true dependencies only: graphplan reports both.
"""

from __future__ import annotations

import msgspec

from graphplan.nouns.prices import Message, PricedStages, TransferPrice


def chain_stages(priced: PricedStages) -> PricedStages:
    """The stages with a message of no bytes from each to the next where nothing flows yet."""
    have = set(priced.edges)
    extra = [(s, s + 1) for s in range(len(priced.stages) - 1) if (s, s + 1) not in have]
    trains = [stage.needs_backward for stage in priced.stages]
    back = [(a, b) for a, b in extra if trains[a] and trains[b]]
    return msgspec.structs.replace(
        priced,
        edges=tuple(sorted([*priced.edges, *extra])),
        backward_edges=tuple(sorted([*priced.backward_edges, *back])),
        transfers=(
            *priced.transfers,
            *(_send_nothing(priced, a, b) for a, b in extra),
            *(_send_nothing(priced, b, a) for a, b in back),
        ),
    )


def _send_nothing(priced: PricedStages, src: int, dst: int) -> TransferPrice:
    """A transfer that takes no time; without a message nobody would wait."""
    senders, receivers = priced.stages[src].devices, priced.stages[dst].devices
    pairs = [(senders[i % len(senders)], device) for i, device in enumerate(receivers)]
    messages = tuple(
        Message(src=a, dst=b, bytes=0, seconds=0.0, latency_s=0.0, channel=f"chain {a}>{b}")
        for a, b in pairs
        if a != b
    )
    return TransferPrice(src=src, dst=dst, backward=src > dst, messages=messages)
