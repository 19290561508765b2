"""`graphplan staleness`: weight versions, delays and stable learning rates of a plan's stages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphplan.errors import InvalidOption, UnknownName

if TYPE_CHECKING:
    from graphplan.nouns.plan import Plan
    from graphplan.nouns.policy import PolicyName
    from graphplan.nouns.prices import PricedStages
    from graphplan.staleness.assess import Order, Staleness

DEFAULT_POLICY: PolicyName = "stash"


@click.command(
    name="staleness",
    epilog="Example: graphplan staleness plan.json --policy 2bw --svg staleness.svg",
)
@click.argument("plan", required=False)
@click.option("--stages", type=click.IntRange(1, 256), help="A plain chain instead of a plan.")
@click.option("--policy", help="Another weight policy than the plan's; for flush plans stash.")
@click.option(
    "--accumulate", type=click.IntRange(1), help="Micro-batches of one update (m of 2bw)."
)
@click.option("--lr", type=float, help="Learning rate of the bound; default: the best one.")
@click.option("--curvature", default=1.0, show_default=True, help="L, the largest curvature.")
@click.option("--gradient", default=1.0, show_default=True, help="G, the gradient's size.")
@click.option("--descent", default=1.0, show_default=True, help="f0 - f*, the loss to descend.")
@click.option("--steps", default=10_000, show_default=True, help="K, in block updates.")
@click.option("--momentum", default=0.0, show_default=True, help="Of the stable learning rates.")
@click.option("--svg", metavar="FILE", help="Write a vector figure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    plan: str | None,
    stages: int | None,
    policy: str | None,
    accumulate: int | None,
    lr: float | None,
    curvature: float,
    gradient: float,
    descent: float,
    steps: int,
    momentum: float,
    svg: str | None,
    as_json: bool,
) -> None:
    """Show how stale the gradients of PLAN are under an asynchronous weight policy.

    Weight versions and delays by stage, the three terms of Randomized PipeDream's bound, the
    largest stable learning rate by curvature, every policy side by side, and how the plan's graph
    compares with a chain of the same stages. docs/staleness.md explains the figures.
    """
    from graphplan.files import read_noun
    from graphplan.nouns.plan import Plan
    from graphplan.staleness.assess import assess_staleness
    from graphplan.staleness.bounds import Setting

    check_wishes(plan, stages, lr)
    setting = Setting(
        curvature=curvature, gradient=gradient, descent=descent, num_steps=steps, momentum=momentum
    )
    given = read_noun(plan, Plan) if plan else None
    name = choose_policy(policy, given)
    order = order_stages(given, stages or 0, name, accumulate)
    found = assess_staleness(
        order,
        order_shape(order),
        source=plan or f"a chain of {stages} stages",
        plan_policy=given.policy.name if given else name,
        setting=setting,
        rate=lr,
    )
    if svg:
        draw_figure(order, found, Path(svg))
    show_figures(found, written=svg, as_json=as_json)


def check_wishes(plan: str | None, stages: int | None, lr: float | None) -> None:
    """Refuse options that contradict each other."""
    if (plan is None) == (stages is None):
        raise InvalidOption(
            "Give a plan or a number of stages, one of the two.",
            remedy="Write graphplan staleness plan.json, or graphplan staleness --stages 4.",
        )
    if lr is not None and not 0 < lr < math.inf:
        raise InvalidOption(f"--lr is {lr:g}.", remedy="Give a positive one, such as 0.01.")


def draw_figure(order: Order, found: Staleness, path: Path) -> None:
    """Write the picture of the timeline and its delays."""
    from graphplan.files import write_bytes
    from graphplan.report.stalesvg import draw_staleness
    from graphplan.staleness.delays import time_schedule
    from graphplan.staleness.versions import list_reads

    ticks = time_schedule(order.priced, order.schedule)
    reads = list(list_reads(order.priced, order.schedule, order.policy))
    write_bytes(draw_staleness(found, ticks, reads).encode(), path)


def show_figures(found: Staleness, *, written: str | None, as_json: bool) -> None:
    """Print for machines or for readers; of a written picture, where it is."""
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found).decode())
    elif written:
        click.echo(f"written to {written}")
    else:
        from rich.console import Console

        from graphplan.report.staletext import render_staleness

        Console(highlight=False).print(render_staleness(found))


def choose_policy(asked: str | None, plan: Plan | None) -> PolicyName:
    """The asked policy, the plan's own if it is asynchronous, or stash."""
    from graphplan.nouns.policy import POLICY_NAMES

    asynchronous = [name for name in POLICY_NAMES if name not in ("flush", "local")]
    if asked is None:
        own = plan.policy.name if plan else DEFAULT_POLICY
        return own if own in asynchronous else DEFAULT_POLICY
    if asked in ("flush", "local"):
        raise InvalidOption(
            f"Policy {asked} waits for all gradients of a batch: its staleness is 0 everywhere.",
            remedy=f"Choose one of {', '.join(asynchronous)}.",
        )
    if asked not in asynchronous:
        raise UnknownName("policy", asked, asynchronous)
    return asked  # type: ignore[return-value]


def order_stages(
    plan: Plan | None, num_stages: int, name: PolicyName, accumulate: int | None
) -> Order:
    """Stages with so many micro-batches that their middle is steady, and their order."""
    import msgspec

    from graphplan.schedule.steady import plan_steady, plan_warmups
    from graphplan.staleness.assess import Order
    from graphplan.staleness.shapes import make_chain
    from graphplan.staleness.walk import refuse_mixed

    priced = plan.prices if plan else make_chain(num_stages)
    refuse_mixed(priced)
    own = plan.policy if plan and not plan.policy.is_synchronous else None
    if any(len(hosted) > 1 for hosted in priced.stages_by_device):
        count = 6 * (len(priced.stages) + 4) * (accumulate or len(priced.stages))
        size = priced.stages[0].micro_batch_size
        longer = msgspec.structs.replace(priced, batch_size=count * size)
        return Order(longer, *plan_steady(longer, name, accumulate=accumulate))
    if accumulate is None and own and own.name == name:
        accumulate = own.accumulate
    return order_warmups(priced, name, own.warmups if own else plan_warmups(priced), accumulate)


def order_shape(order: Order) -> Order:
    """The bare graph with the warm-ups that free messages need, an update every micro-batch."""
    from graphplan.schedule.steady import plan_warmups
    from graphplan.staleness.shapes import strip_prices

    shape = strip_prices(order.priced)
    return order_warmups(shape, "stash", plan_warmups(shape), 1)


def order_warmups(
    priced: PricedStages, name: PolicyName, warmups: tuple[int, ...], accumulate: int | None
) -> Order:
    """The steady order with these warm-ups; 2bw accumulates what it must unless told."""
    import msgspec

    from graphplan.nouns.policy import WeightPolicy
    from graphplan.schedule.steady import build_steady
    from graphplan.staleness.assess import Order
    from graphplan.staleness.delays import count_needed

    least = max(1, *warmups) if name == "2bw" else 1
    policy = WeightPolicy(name=name, warmups=warmups, accumulate=accumulate or least)
    size = priced.stages[0].micro_batch_size
    longer = msgspec.structs.replace(priced, batch_size=count_needed(policy) * size)
    return Order(longer, policy, build_steady(longer, policy))
