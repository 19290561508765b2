"""render_staleness: versions, delays, limits and bound on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from graphplan.staleness.assess import Staleness
from graphplan.staleness.bounds import BoundTerms

TERMS: Sequence[tuple[str, Callable[[BoundTerms], float]]] = (
    ("learning rate of the bound", lambda bound: bound.rate),
    ("  descent, 2S(f0-f*)/(lr K)", lambda bound: bound.descent),
    ("  + noise, lr S L G^2", lambda bound: bound.noise),
    ("  + staleness, (lr L delay G)^2", lambda bound: bound.staleness),
    ("  = bound", lambda bound: bound.total),
)


def render_staleness(found: Staleness) -> Group:
    """Stages, the graph beside the chain, the bound, and the policies."""
    return Group(*_list_parts(found))


def _list_parts(found: Staleness) -> Iterator[RenderableType]:
    yield f"[bold]{found.source}[/]: {describe_policy(found)}"
    yield ""
    yield _render_stages(found)
    yield ""
    yield _render_chain(found)
    yield describe_setting(found)
    yield ""
    yield _render_policies(found)


def describe_policy(found: Staleness) -> str:
    """Which policy the figures are for, and why."""
    every = found.policy.accumulate
    stages = "1 stage" if found.num_stages == 1 else f"{found.num_stages} stages"
    text = f"{stages}, depth {found.graph.depth}, policy {found.policy.name}"
    text += f", an update every {every} micro-batches" if every > 1 else ""
    if found.plan_policy != found.policy.name:
        text += (
            f". The plan's own policy is {found.plan_policy}; this is what its stages would have"
            " in their asynchronous steady order"
        )
    return text + "."


def describe_setting(found: Staleness) -> str:
    """What the bound is of, and the constants that went in."""
    setting = found.setting
    return (
        f"Bound on the mean squared gradient over {setting.num_steps:,} block updates, with"
        f" L = {setting.curvature:g}, G = {setting.gradient:g}, f0 - f* = {setting.descent:g}."
        " Graph and chain: messages take no time."
        f" Stable learning rates: momentum {setting.momentum:g}, curvature L."
    )


def _render_stages(found: Staleness) -> Table:
    table = _make_table(
        "stage", "warm-up", "versions", "updates behind", "delay, largest", "mean", "largest lr"
    )
    for row in found.stages:
        if row.delay is None:
            table.add_row(str(row.stage), str(row.warmup), "1", "no weights to train")
            continue
        table.add_row(
            str(row.stage),
            str(row.warmup),
            str(row.versions),
            str(row.delay.staleness),
            str(row.delay.largest),
            f"{row.delay.mean:.1f}",
            f"{row.largest_rate:.4f}",
        )
    return table


def _render_chain(found: Staleness) -> Table:
    """The plan, its graph and the chain; the last two with stash and free messages."""
    graph, chain = found.graph, found.chain
    table = _make_table("", "as planned", "graph, stash", "chain, stash")
    rows: Sequence[tuple[str, ...]] = [
        ("depth", str(graph.depth), str(graph.depth), str(chain.depth)),
        (
            "largest delay, block updates",
            str(found.largest_delay),
            str(graph.largest_delay),
            str(chain.largest_delay),
        ),
        ("n D - n/2", "", f"{graph.expected_delay:g}", f"{chain.expected_delay:g}"),
        (
            "mean delay",
            f"{found.mean_delay:.1f}",
            f"{graph.mean_delay:.1f}",
            f"{chain.mean_delay:.1f}",
        ),
        (
            "largest stable lr",
            f"{found.largest_rate:.4f}",
            f"{graph.largest_rate:.4f}",
            f"{chain.largest_rate:.4f}",
        ),
        *(
            (name, *(f"{value(each.bound):.3g}" for each in (found, graph, chain)))
            for name, value in TERMS
        ),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _render_policies(found: Staleness) -> Table:
    table = _make_table("policy", "updates behind", "versions", "largest lr")
    for row in found.policies:
        table.add_row(
            row.policy,
            str(row.staleness),
            str(row.versions),
            f"{row.largest_rate:.4f}",
            style="bold" if row.policy == found.policy.name else None,
        )
    return table


def _make_table(*heads: str) -> Table:
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    return table
