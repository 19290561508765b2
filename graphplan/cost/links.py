"""Links: seconds of collectives by size, over devices that one kind of link joins.

    seconds = start + steps * hop + traffic / bandwidth of the devices * (1 + (half / bytes)^k)^1/2

With n devices an all-reduce has 2 (n - 1) steps and moves 2 (n - 1) / n of its bytes, a gathering
or a scattering half of both. A group of n reaches `efficiency` * n / (n + ends) of what a message
alone reaches (the link's bandwidth): two devices use fewer paths than eight
(`ends_once` where they gather or scatter). Without peer access
every message crosses the memory of the host twice, beside those of all others, and half of them the
link between the sockets: what a device gets falls with (2 / n) ** `crowding`, which is 2 for eight
L40S in a box (20, 5 and 1.4 GB/s for 2, 4 and 8). Switches that add up make an all-reduce faster
than gathering: `once`.
Where a link has no figures of its own, those of its class hold (profiles/laws/links.toml).

A link without any (gloo between processes) is the textbook's: a ring or a double binary tree of
messages (Patarasuk and Yuan 2009). Both ends of a message wait for it (`host_s`); where an
all-reduce over all ranks of a host was measured, its own messages count (`reduce_s`).
"""

from __future__ import annotations

import math
from typing import Literal

from graphplan.nouns.cluster import Link

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]


def collective_time(link: Link, kind: Collective, count: int, num_bytes: float) -> float:
    """Seconds of a collective of `count` devices; bytes are those of the whole buffer."""
    if count < 2 or num_bytes <= 0:
        return 0.0
    if link.law is None:
        whole = _textbook_time(link, count, num_bytes)
        return whole if kind == "all_reduce" else whole / 2
    law = link.law
    rounds = 2 if kind == "all_reduce" else 1
    crowd = math.pow(2 / count, law.crowding)
    share, ends = (1.0, law.ends) if kind == "all_reduce" else (law.once, law.ends_once)
    reached = law.efficiency * share * count / (count + ends) * crowd
    wire_s = rounds * (count - 1) / count * num_bytes / link.bandwidth_bytes_per_s
    ramp = math.sqrt(1 + math.pow(law.half_bytes / num_bytes, law.ramp))
    return law.start_s + rounds * (count - 1) * law.hop_s + wire_s * ramp / reached


def _textbook_time(link: Link, count: int, num_bytes: float) -> float:
    """The better of a ring and a double binary tree."""
    start_s = _step_time(link, 0)
    wire_s = _step_time(link, num_bytes) - start_s
    tree = 2 * (math.ceil(math.log2(count)) * start_s + wire_s)
    return min(2 * (count - 1) * _step_time(link, num_bytes / count), tree)


def _step_time(link: Link, num_bytes: float) -> float:
    if link.reduce_s is not None:
        return link.reduce_s + num_bytes * link.reduce_s_per_byte
    wire_s = num_bytes / link.bandwidth_bytes_per_s + link.latency_s
    return wire_s + 2 * link.host_time(num_bytes)
