"""Who sends which rows of a micro-batch to whom, when sender and receiver have unequal replicas."""

from __future__ import annotations

import math

import msgspec


class Share(msgspec.Struct, frozen=True):
    """`rows` of every `all_rows` rows go from replica `src` to replica `dst`.

    `leads` marks the one sender from which a receiver takes what is not split by rows.
    """

    src: int
    dst: int
    rows: int
    all_rows: int
    leads: bool


def share_rows(num_senders: int, num_receivers: int) -> list[Share]:
    """Overlaps of two even splits: 2 senders and 3 receivers of 6 rows share 2 1 | 1 2."""
    all_rows = math.lcm(num_senders, num_receivers)
    sent, received = all_rows // num_senders, all_rows // num_receivers
    shares = []
    for dst in range(num_receivers):
        first = dst * received // sent
        last = ((dst + 1) * received - 1) // sent
        for src in range(first, last + 1):
            start = max(src * sent, dst * received)
            end = min((src + 1) * sent, (dst + 1) * received)
            shares.append(Share(src, dst, end - start, all_rows, src == first))
    return shares
