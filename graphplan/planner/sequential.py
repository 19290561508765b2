"""Sequential pipelines: stages that run one after another, also where the model has branches.

The published sequential planners (PipeDream, Piper) hand every micro-batch from stage to stage in
one line; a stage waits for the one before it even if it reads nothing from it. The same cut may run
faster with its true dependencies only: graphplan reports both.
"""

from __future__ import annotations

import msgspec

from graphplan.nouns.prices import PricedStages, TransferPrice


def chain_stages(priced: PricedStages) -> PricedStages:
    """The stages with an empty message from each to the next where nothing flows yet."""
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
            *(TransferPrice(src=a, dst=b, backward=False, messages=()) for a, b in extra),
            *(TransferPrice(src=b, dst=a, backward=True, messages=()) for a, b in back),
        ),
    )
