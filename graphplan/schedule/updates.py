"""When a stage reduces its gradients and applies its update, under every weight policy.

flush            after the last micro-batch of the batch: R (where there is something to reduce), U
asynchronous     after every `accumulate` micro-batches: R, U
local            after the last micro-batch of the batch: U, then R averages the replicas' weights;
                 with H local steps it runs in every H-th batch
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.task import Task
from graphplan.schedule.shop import G, Shop, W


def list_updates(priced: PricedStages, stage: int, m: int, policy: WeightPolicy) -> list[Task]:
    """The R and U tasks of one update of a stage, named by the last micro-batch that it covers."""
    price = priced.stages[stage]
    # One device may still have gradients of tied weights to reduce with other stages.
    tasks = [Task(stage, "R", m)] if len(price.devices) > 1 or price.reduce_s > 0 else []
    tasks.append(Task(stage, "U", m))
    return tasks[::-1] if policy.name == "local" else tasks


def place_updates(
    shop: Shop, order: Sequence[int], policy: WeightPolicy
) -> dict[int, list[tuple[int, int]]]:
    """Updates (stage, last micro-batch) by the position in a machine's order that they follow."""
    last: dict[tuple[int, int], int] = {}
    for position, number in enumerate(order):
        stage, row, micro_batch = shop.place_of(number)
        if row in (G, W):
            count = shop.count_by_stage[stage]
            period = count if policy.is_synchronous else policy.accumulate
            last[stage, micro_batch // period * period + period - 1] = position
    placed: dict[int, list[tuple[int, int]]] = {}
    for update, position in sorted(last.items()):
        placed.setdefault(position, []).append(update)
    return placed


def check_policy(priced: PricedStages, policy: WeightPolicy) -> None:
    """Refuse what an asynchronous policy cannot do with these stages."""
    if policy.is_synchronous:
        return
    if len({stage.micro_batch_size for stage in priced.stages}) > 1:
        raise InvalidOption(
            f"Policy {policy.name} wants micro-batches of one size at every stage.",
            remedy="Choose one micro-batch size, or policy flush.",
        )
    count = priced.num_micro_batches(0)
    if policy.accumulate < 1 or count % policy.accumulate:
        raise InvalidOption(
            f"An update every {policy.accumulate} micro-batches does not divide the {count} of"
            " the batch.",
            remedy=f"Choose accumulate among the divisors of {count}.",
        )
    if len(policy.warmups) != len(priced.stages):
        raise InvalidOption(
            f"The policy has {len(policy.warmups)} warm-ups for {len(priced.stages)} stages.",
            remedy="Give one warm-up for every stage.",
        )
    most = max(policy.warmups)
    if policy.name == "2bw" and policy.accumulate < most:
        legal = next((m for m in range(most, count + 1) if count % m == 0), None)
        raise InvalidOption(
            f"2bw with warm-ups up to {most} must accumulate at least as many micro-batches per"
            f" update, not {policy.accumulate}.",
            remedy=f"Set accumulate to {legal} or more."
            if legal is not None
            else f"Use a batch of at least {most} micro-batches.",
        )
