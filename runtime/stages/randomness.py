"""Randomness: every task that draws random numbers has a seed of its own.

The seed depends on the run's seed, the step, the stage, the micro-batch and the replica, never on
when a task runs: recomputation draws the same numbers again, a resumed run those that it would have
drawn, and the order of the schedule does not matter. The generators of the user's own code are left
as they were.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch
from torch import fx

from graphplan.frontend.leaves import ModuleCall
from graphplan.frontend.targets import is_random


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from anything that tells draws apart."""
    text = ":".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def draws_numbers(graph: fx.Graph) -> bool:
    """Whether a graph holds ops that may use the random generator; a leaf does not tell."""
    return any(
        is_random(node.target) or isinstance(node.target, ModuleCall) for node in graph.nodes
    )


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generator that ops on a device use."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.get_device_module(device).manual_seed(seed)


@contextlib.contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Restore the state of the CPU's and the device's generator afterwards."""
    accelerators = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=accelerators, device_type=device.type):
        yield
