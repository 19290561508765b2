"""Agreement: all ranks must run the same plan, model and options, with the same torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
import torch.distributed as dist

from graphplan.errors import InvalidOption

_DIGEST_BYTES = 16


def require_agreement(facts: Mapping[str, str]) -> None:
    """Raise on every rank when a fact differs between ranks; names the fact and the ranks."""
    rows = [hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES] for text in facts.values()]
    own = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    for index, name in enumerate(facts):
        cut = slice(index * _DIGEST_BYTES, (index + 1) * _DIGEST_BYTES)
        parts = [bytes(each[cut].tolist()) for each in gathered]
        others = [rank for rank, part in enumerate(parts) if part != parts[0]]
        if others:
            ranks = ", ".join(map(str, others))
            raise InvalidOption(
                f"Rank {ranks} has another {name} than rank 0.",
                remedy="Start all ranks with the same files, options and packages.",
            )
