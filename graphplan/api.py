"""The Python API: the same verbs, defaults and errors as the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphplan.errors import CheckFailed
from graphplan.files import read_noun, write_noun
from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import PolicyName
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.timeline import Timeline
from graphplan.planner.options import SearchOptions

if TYPE_CHECKING:
    from graphplan.frontend import Captured
    from graphplan.report.figures import Figures
    from graphplan.report.limits import Finding


def capture(module: Any, inputs: Any, *, loss: Any = None, name: str | None = None) -> Captured:
    """The op graph of a module's training forward, with what is needed to cut and run it.

    `inputs` is a tuple of arguments, a dict of keyword arguments, or (best) a function that makes
    either for a batch size, from which the batch dimensions are learned.
    """
    from graphplan.frontend import trace_module

    return trace_module(module, inputs, loss=loss, name=name or type(module).__name__)


def cluster(name: str | None = None, *, gpus: int | None = None) -> Cluster:
    """A known cluster by name, one from a TOML file, or `gpus` of the default GPU."""
    from graphplan.cost.hardware import find_cluster

    return find_cluster(name, gpus=gpus)


def search(
    graph: OpGraph | Captured,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    tables: Mapping[str, ProfileTable] | None = None,
) -> Plan:
    """The best plan for a graph on a cluster; costs are estimated unless tables are given."""
    from graphplan.planner.search import search_plan

    found = graph if isinstance(graph, OpGraph) else graph.graph
    return search_plan(found, cluster, options, tables=tables)


def whatif(
    plan: Plan,
    *,
    graph: OpGraph | None = None,
    cluster: Cluster | None = None,
    batch_size: int | None = None,
    schedule: str | None = None,
    policy: PolicyName | None = None,
) -> Timeline:
    """The timeline of a plan, optionally elsewhere, with another batch, schedule or policy."""
    from graphplan.planner.whatif import simulate_plan

    return simulate_plan(
        plan,
        graph=graph,
        cluster=cluster,
        batch_size=batch_size,
        schedule=schedule,
        policy=policy,
    )


def explain(plan: Plan) -> tuple[Finding, ...]:
    """What limits a plan, most telling first: what `graphplan show` and the page say."""
    from graphplan.report.limits import find_limits
    from graphplan.report.spans import split_spans
    from graphplan.report.stagerows import describe_stages
    from graphplan.report.usage import measure_usage

    timeline = whatif(plan)
    rows = split_spans(timeline)
    return find_limits(plan, measure_usage(timeline, rows), describe_stages(plan, timeline, rows))


def figures(plan: Plan, *, graph: OpGraph | Captured | None = None) -> Figures:
    """What `search --json` prints: step, gap, expected error; MFU and tokens with the graph."""
    from graphplan.report.figures import collect_figures

    given = graph.graph if graph is not None and not isinstance(graph, OpGraph) else graph
    return collect_figures(plan, "", graph=given)


def check(plan: Plan) -> None:
    """Raise CheckFailed with every rule that a plan breaks."""
    from graphplan.referee import check_plan

    violations = check_plan(plan).violations
    if violations:
        raise CheckFailed(
            "\n".join(f"{each.rule} at {each.place}: {each.message}" for each in violations),
            remedy="Do not run this plan; search again, or mend what was edited.",
        )


def save(noun: Noun, path: Path | str) -> None:
    """Write a plan, graph, table, timeline or cluster as JSON."""
    write_noun(noun, path)


def load(path: Path | str) -> Plan:
    """Read a plan; nothing is executed."""
    return read_noun(path, Plan)
