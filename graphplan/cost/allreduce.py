"""All-reduce time over the links of a cluster.

Assumptions: every message uses the full bandwidth of its channel; ring and tree are the textbook
ones (Patarasuk and Yuan 2009; double binary trees as in NCCL); between nodes the reduction is
hierarchical: reduce-scatter inside each node, one ring per shard between the nodes, all-gather
inside. Both ends of a message wait for it: what it takes from them (`host_s`) adds to its time.
Where an all-reduce over all ranks of a host was measured, its own messages count (`reduce_s`); they
also gather, add up and spread. It breaks when other traffic shares the links at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from graphplan.nouns.cluster import Cluster, Link


def allreduce_time(cluster: Cluster, devices: Sequence[int], num_bytes: int) -> float:
    """Seconds to sum `num_bytes` over the devices and give everyone the result."""
    if len(devices) < 2 or num_bytes == 0:
        return 0.0
    sizes = Counter(cluster.devices[device].node for device in devices)
    inside = [cluster.nodes[node].link for node, size in sizes.items() if size > 1]
    slowest = max(inside, key=lambda link: _message_time(link, num_bytes), default=None)
    if len(sizes) == 1:
        assert slowest is not None
        return _flat_time(slowest, len(devices), num_bytes)
    flat = _flat_time(cluster.link, len(devices), num_bytes)
    if slowest is None:
        return flat
    return min(flat, _two_level_time(cluster.link, slowest, sizes, num_bytes))


def least_allreduce_time(cluster: Cluster, count: int, num_bytes: int) -> float:
    """The least such time of any `count` devices: evenly over so many nodes, on the best links.

    For a given number of nodes, even shares make the largest one smallest and the smallest one
    largest, and both only help; that nodes may be too small is left out.
    """
    if count < 2 or num_bytes == 0:
        return 0.0
    inside = max((node.link for node in cluster.nodes), key=lambda link: link.bandwidth_bytes_per_s)
    quickest = min(node.link.latency_s for node in cluster.nodes)
    inside = msgspec.structs.replace(inside, latency_s=quickest)
    largest = max(len(node.devices) for node in cluster.nodes)
    found = [_flat_time(inside, count, num_bytes)] if count <= largest else []
    if len(cluster.nodes) > 1:
        found.append(_flat_time(cluster.link, count, num_bytes))
    for num_nodes in range(2, min(count, len(cluster.nodes) + 1)):
        if -(-count // num_nodes) <= largest:
            low, extra = divmod(count, num_nodes)
            sizes = Counter({node: low + (node < extra) for node in range(num_nodes)})
            found.append(_two_level_time(cluster.link, inside, sizes, num_bytes))
    return min(found)


def _flat_time(link: Link, count: int, num_bytes: int) -> float:
    """The better of a ring and a double binary tree."""
    start_s = _message_time(link, 0)
    wire_s = _message_time(link, num_bytes) - start_s
    tree = 2 * (math.ceil(math.log2(count)) * start_s + wire_s)
    return min(_ring_time(link, count, num_bytes), tree)


def _two_level_time(between: Link, inside: Link, sizes: Counter[int], num_bytes: int) -> float:
    """Reduce-scatter and all-gather inside the nodes around a ring between them."""
    largest, smallest = max(sizes.values()), min(sizes.values())
    scatter_s = _ring_time(inside, largest, num_bytes)
    # With one port a node all shards share it; else each device moves its own shard.
    shard_bytes = num_bytes if between.scope == "node" else num_bytes / smallest
    return scatter_s + _ring_time(between, len(sizes), shard_bytes)


def _ring_time(link: Link, count: int, num_bytes: float) -> float:
    return 2 * (count - 1) * _message_time(link, num_bytes / count)


def _message_time(link: Link, num_bytes: float) -> float:
    if link.reduce_s is not None:
        return link.reduce_s + num_bytes * link.reduce_s_per_byte
    wire_s = num_bytes / link.bandwidth_bytes_per_s + link.latency_s
    return wire_s + 2 * link.host_time(num_bytes)
