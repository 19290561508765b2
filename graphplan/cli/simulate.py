"""`graphplan simulate`: what a plan would do on another cluster, batch, schedule or policy."""

from __future__ import annotations

import json

import click

from graphplan.cli.options import cluster_options, load_cluster, load_graph, parse_settings
from graphplan.errors import InvalidOption
from graphplan.files import read_noun, write_noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import POLICY_NAMES, PolicyName
from graphplan.nouns.timeline import Timeline


@click.command(
    name="simulate",
    epilog="Example: graphplan simulate plan.json --cluster dgx-h100 --model examples/mmt.py",
)
@click.argument("plan", type=str)
@cluster_options
@click.option("--model", help="The model file or graph.json; needed with --cluster.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in search.")
@click.option("--batch", type=click.IntRange(1), help="Another batch, same micro-batches.")
@click.option("--schedule", help="Another schedule.")
@click.option("--policy", type=click.Choice(POLICY_NAMES), help="Another weight policy.")
@click.option("-o", "--output", help="Write the timeline to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    plan: str,
    gpus: int | None,
    cluster: str | None,
    memory: str | None,
    execution: str,
    model: str | None,
    settings: tuple[str, ...],
    batch: int | None,
    schedule: str | None,
    policy: PolicyName | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Simulate PLAN again under other conditions, its stages unchanged.

    What does not fit into the memory of a device is simulated all the same, and said.
    """
    from graphplan.planner.whatif import simulate_plan

    given = read_noun(plan, Plan)
    wants_cluster = bool(cluster or gpus or memory or execution != "eager")
    if wants_cluster and model is None:
        raise InvalidOption(
            "Another cluster changes the times of the ops, which are not in the plan.",
            remedy=f"Add --model with the model of the plan ({given.model.name}).",
        )
    park = load_cluster(cluster, gpus, memory, execution) if wants_cluster else given.cluster
    timeline = simulate_plan(
        given,
        graph=load_graph(model, parse_settings(settings)) if model else None,
        cluster=park if wants_cluster else None,
        batch_size=batch,
        schedule=schedule,
        policy=policy,
    )
    if output:
        write_noun(timeline, output)
    if as_json:
        click.echo(json.dumps(summarise_timeline(timeline, park)))
    else:
        print_comparison(given, timeline)
        click.echo(describe_excess(timeline, park), nl=False)


def list_excess(timeline: Timeline, cluster: Cluster) -> dict[int, int]:
    """By device that does not hold its peak, the bytes that are too much."""
    return {
        device.index: peak.bytes - device.memory_bytes
        for device, peak in zip(cluster.devices, timeline.peaks, strict=False)
        if peak.bytes > device.memory_bytes
    }


def describe_excess(timeline: Timeline, cluster: Cluster) -> str:
    """A line that says which device is over its memory and by how much; "" when all fit."""
    from graphplan.report.units import format_bytes

    excess = list_excess(timeline, cluster)
    if not excess:
        return ""
    worst = max(excess, key=lambda device: (excess[device], -device))
    limit = cluster.devices[worst].memory_bytes
    more = f"; {len(excess)} of {len(timeline.peaks)} devices are over" if len(excess) > 1 else ""
    return (
        f"Does not fit: device {worst} needs {format_bytes(limit + excess[worst])} of"
        f" {format_bytes(limit)}, {format_bytes(excess[worst])} too much{more}.\n"
    )


def summarise_timeline(timeline: Timeline, cluster: Cluster) -> dict[str, object]:
    """What `--json` prints."""
    excess = list_excess(timeline, cluster)
    return {
        "step_s": timeline.makespan_s,
        "samples_per_s": timeline.samples_per_s,
        "bubble": timeline.bubble,
        "bubble_by_device": list(timeline.bubble_by_device),
        "peak_bytes_by_device": [peak.bytes for peak in timeline.peaks],
        "fits": not excess,
        "excess_bytes_by_device": [excess.get(device, 0) for device in range(len(timeline.peaks))],
    }


def print_comparison(plan: Plan, timeline: Timeline) -> None:
    """The plan's own prediction beside the new one."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "plan", "now", "now / plan", box=None, pad_edge=False, header_style="bold")
    was = plan.prediction
    peaks = (
        max(was.peak_bytes_by_device, default=0),
        max((peak.bytes for peak in timeline.peaks), default=0),
    )
    rows = [
        ("step, ms", was.step_s * 1e3, timeline.makespan_s * 1e3),
        ("samples/s", was.samples_per_s, timeline.samples_per_s),
        ("bubble, %", was.bubble * 100, timeline.bubble * 100),
        ("largest peak, GiB", peaks[0] / 2**30, peaks[1] / 2**30),
    ]
    for name, before, after in rows:
        ratio = f"{after / before:.3f}" if before else "-"
        table.add_row(name, f"{before:,.2f}", f"{after:,.2f}", ratio)
    for column in table.columns[1:]:
        column.justify = "right"
    Console(highlight=False).print(table)
