"""`graphplan clusters`: the known clusters and device types, or one of them in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from graphplan.nouns.cluster import Cluster, DeviceType, Link


@click.command(
    name="clusters", epilog="Example: graphplan clusters dgx-h100; graphplan clusters lab.toml"
)
@click.argument("name", required=False)
@click.option("--gpus", type=int, help="Bring the cluster to this many devices.")
@click.option("--verbose", is_flag=True, help="Show every figure of the laws with its source.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, gpus: int | None, verbose: bool, as_json: bool) -> None:
    """List clusters and device types, or show NAME (a profile, a device type or a TOML file)."""
    from graphplan.cost.hardware import find_cluster, find_device_type, list_device_types

    if name is None:
        show_all(as_json=as_json)
    elif name in list_device_types() and name != "cpu":
        show_noun(find_device_type(name), verbose=verbose, as_json=as_json)
    else:
        show_noun(find_cluster(name, gpus=gpus), verbose=verbose, as_json=as_json)


def show_all(*, as_json: bool) -> None:
    """Every profile with its title."""
    from graphplan.cost.hardware import list_clusters, list_device_types, read_title

    titles = {
        "clusters": {name: read_title(name) for name in list_clusters()},
        "device_types": {name: read_title(name, folder="hardware") for name in list_device_types()},
    }
    if as_json:
        print_json(titles)
        return
    for heading, entries in titles.items():
        click.echo(f"{heading.replace('_', ' ').capitalize()}:")
        for name, title in entries.items():
            click.echo(f"  {name:<15} {title}")
    click.echo("\nShow one: graphplan clusters dgx-h100. Describe your own in a TOML file:\n")
    click.echo(_example())


def show_noun(noun: Cluster | DeviceType, *, verbose: bool = False, as_json: bool = False) -> None:
    """One cluster or device type."""
    if as_json:
        print_json(noun)
        return
    from graphplan.nouns.cluster import Cluster

    types = noun.types if isinstance(noun, Cluster) else (noun,)
    lines = describe_cluster(noun) if isinstance(noun, Cluster) else describe_type(noun)
    if verbose:
        lines += [line for kind in types for line in ("", *describe_laws(kind))]
    for line in lines:
        click.echo(line)


def describe_cluster(cluster: Cluster) -> list[str]:
    """Nodes, links and device types of a cluster, a line each."""
    lines = [
        f"{cluster.name}: {len(cluster.devices)} devices in {len(cluster.nodes)} nodes,"
        f" {cluster.usable_memory:.0%} of memory usable"
    ]
    counts: dict[str, int] = {}
    for node in cluster.nodes:
        content = _count_names(node.devices)
        text = f"{content}; inside {describe_link(node.link)}"
        counts[text] = counts.get(text, 0) + 1
    lines += [f"  {count} x node of {text}" for text, count in counts.items()]
    lines += [f"  between nodes {describe_link(cluster.link)}"]
    for kind in cluster.types:
        lines += ["", *describe_type(kind)]
    return lines


def describe_link(link: Link) -> str:
    """Bandwidth, latency and sharing of a link."""
    shared = {"pair": "a pair of devices", "device": "a device", "node": "a node"}[link.scope]
    rate, delay = link.bandwidth_bytes_per_s / 1e9, link.latency_s * 1e6
    return f"{rate:g} GB/s a direction for {shared}, {delay:g} us"


def describe_type(kind: DeviceType) -> list[str]:
    """Memory, rates and errors of the laws of a device type, a line each."""
    rates = kind.flops_per_s_by_dtype.items()
    errors = [f"{name} {law.error:.0%}" for name, law in kind.laws.items() if law.error is not None]
    return [
        f"{kind.name}: {kind.memory_bytes / 2**30:g} GiB,"
        f" {kind.bandwidth_bytes_per_s / 1e9:g} GB/s, {kind.num_units} units,"
        f" cache {kind.cache_bytes / 2**20:g} MiB, launch {kind.launch_s * 1e6:g} us,"
        f" host {kind.host_s * 1e6:g} us a kernel",
        "  TFLOPS      " + ", ".join(f"{dtype} {rate / 1e12:g}" for dtype, rate in rates),
        "  mean error  " + (", ".join(errors) or "not validated"),
        f"  source      {kind.source}",
    ]


def describe_laws(kind: DeviceType) -> list[str]:
    """Every law of a device type: error class, figures, source."""
    lines = [f"laws of {kind.name}:"]
    for name, law in kind.laws.items():
        figures = ", ".join(f"{key} {value:g}" for key, value in law.figures.items())
        lines += [
            f"  {name:13} {name_error(law.error)}",
            f"                {figures}",
            f"                {law.source}",
        ]
    return lines


def name_error(error: float | None) -> str:
    """The error class of a law: what its figures left on shapes that were not fitted."""
    if error is None:
        return "not validated"
    grade = "good" if error <= 0.1 else "fair" if error <= 0.2 else "rough"
    return f"{grade}, mean error {error:.1%}"


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _count_names(names: tuple[str, ...]) -> str:
    return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _example() -> str:
    from graphplan.cost.hardware import CLUSTER_EXAMPLE

    return "\n".join(f"    {line}" for line in CLUSTER_EXAMPLE.splitlines())
