"""Hosts: a cluster with what measured tables tell of its devices and of the host they share.

A table that was measured beside other ranks (`graphplan profile --ranks-per-host`) tells how much
memory bandwidth each of them has, what a message between them takes and what the runtime takes for
a task. On the machine that was measured, these figures are better than those of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from graphplan.nouns.cluster import Cluster, DeviceType, Node
from graphplan.nouns.table import Host, ProfileTable


def adopt_hosts(cluster: Cluster, tables: Mapping[str, ProfileTable]) -> Cluster:
    """The cluster with measured figures in place of those of its profiles, where there are any."""
    hosts = {name: table.host for name, table in tables.items() if table.host is not None}
    return msgspec.structs.replace(
        cluster,
        types=tuple(_adopt_type(kind, tables.get(kind.name)) for kind in cluster.types),
        nodes=tuple(_adopt_link(node, hosts) for node in cluster.nodes),
    )


def _adopt_type(kind: DeviceType, table: ProfileTable | None) -> DeviceType:
    if table is None:
        return kind
    if table.update_s_per_element is not None:
        kind = msgspec.structs.replace(kind, update_s_per_element=table.update_s_per_element)
    if table.host is not None:
        kind = msgspec.structs.replace(
            kind, bandwidth_bytes_per_s=table.host.bandwidth_bytes_per_s, task_s=table.host.task_s
        )
    return kind


def _adopt_link(node: Node, host_by_type: Mapping[str, Host]) -> Node:
    """The measured link where all devices of a node are of measured types; the slowest one."""
    hosts = [host_by_type.get(name) for name in sorted(set(node.devices))]
    links = [host.link for host in hosts if host is not None]
    if len(links) < len(hosts):
        return node
    slowest = min(links, key=lambda link: link.bandwidth_bytes_per_s)
    return msgspec.structs.replace(
        node, link=msgspec.structs.replace(slowest, scope=node.link.scope)
    )
