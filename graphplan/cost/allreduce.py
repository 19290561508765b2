"""All-reduce time over the devices of a cluster.

Inside a node its link counts (cost/links.py). Between nodes the better of two ways: one ring over
all devices at the pace of the network, or reduce-scatter inside each node, a ring for every shard
between the nodes, and all-gather inside. With one port a node all shards, and all devices of a node
in a ring, share it. It breaks when other traffic uses the links at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from graphplan.cost.links import collective_time
from graphplan.nouns.cluster import Cluster, Link


def allreduce_time(cluster: Cluster, devices: Sequence[int], num_bytes: int) -> float:
    """Seconds to sum `num_bytes` over the devices and give everyone the result."""
    if len(devices) < 2 or num_bytes == 0:
        return 0.0
    sizes = Counter(cluster.devices[device].node for device in devices)
    inside = [(cluster.nodes[node].link, size) for node, size in sizes.items() if size > 1]
    if len(sizes) == 1:
        return collective_time(inside[0][0], "all_reduce", len(devices), num_bytes)
    flat = collective_time(cluster.link, "all_reduce", len(devices), num_bytes)
    if not inside:
        return flat
    slowest = max(collective_time(link, "all_reduce", size, num_bytes) for link, size in inside)
    return min(flat, slowest + _between_time(cluster.link, sizes, num_bytes))


def least_allreduce_time(cluster: Cluster, count: int, num_bytes: int) -> float:
    """The least such time of any `count` devices: evenly over so many nodes, on the best links.

    For a given number of nodes, even shares make the largest one smallest and the smallest one
    largest, and both only help; that nodes may be too small is left out.
    """
    if count < 2 or num_bytes == 0:
        return 0.0
    links = list({msgspec.json.encode(node.link): node.link for node in cluster.nodes}.values())
    largest = max(len(node.devices) for node in cluster.nodes)
    found = [_best(links, count, num_bytes)] if count <= largest else []
    if len(cluster.nodes) > 1:
        found.append(collective_time(cluster.link, "all_reduce", count, num_bytes))
    for num_nodes in range(2, min(count, len(cluster.nodes) + 1)):
        if -(-count // num_nodes) <= largest:
            low, extra = divmod(count, num_nodes)
            sizes = Counter({node: low + (node < extra) for node in range(num_nodes)})
            inside = _best(links, max(sizes.values()), num_bytes)
            found.append(inside + _between_time(cluster.link, sizes, num_bytes))
    return min(found)


def _between_time(link: Link, sizes: Counter[int], num_bytes: float) -> float:
    """A ring between the nodes for every shard; with one port a node they share it."""
    shard = num_bytes if link.scope == "node" else num_bytes / min(sizes.values())
    return collective_time(link, "all_reduce", len(sizes), shard)


def _best(links: Sequence[Link], count: int, num_bytes: float) -> float:
    return min(collective_time(link, "all_reduce", count, num_bytes) for link in links)
