"""Neighbours: other processes that train the same model while it is measured.

Ranks of one host share its caches, its memory and, often without being told, the units of its
cores: an op alone is faster than it will ever be in a run. A neighbour repeats the whole model's
step, on random data, from the op graph alone; it ends when its parent does.

    # micro-batch of 8, one thread, rank 1 of 2
    python -m graphplan.cost.measure_neighbours graph.json 8 1 1 2
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from graphplan.cost.allocator import keep_freed_memory
from graphplan.cost.cores import count_cores, keep_cores, kept_cores
from graphplan.cost.measure_clock import Clock
from graphplan.cost.measure_rebuild import rebuild_graph
from graphplan.cost.measure_step import fits_memory, prepare_step
from graphplan.cost.measure_units import run_on_fakes
from graphplan.errors import InvalidOption
from graphplan.files import read_noun, write_noun
from graphplan.nouns.opgraph import OpGraph

MOST_RANKS = 4
"""Ranks of a host unless the user names a number: as many as the `cpu` cluster has."""


def use_rank_threads(device: str) -> None:
    """As many threads as a rank of a run has: OMP_NUM_THREADS, else one."""
    if torch.device(device).type == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def count_ranks(device: str) -> int:
    """How many ranks will probably share this host."""
    if torch.device(device).type != "cpu":
        return 1
    return max(1, min(MOST_RANKS, count_cores() // torch.get_num_threads()))


def check_ranks(num_ranks: int, device: str) -> None:
    """Refuse neighbours that could not be at work all the time."""
    if num_ranks < 1:
        raise InvalidOption(f"{num_ranks} ranks are too few.", remedy="Use --ranks-per-host 1.")
    if num_ranks > 1 and torch.device(device).type != "cpu":
        raise InvalidOption(
            f"Ranks of one host do not share a {device} device.",
            remedy="Leave --ranks-per-host away.",
        )
    most = count_cores() // torch.get_num_threads()
    if num_ranks > max(1, most):
        raise InvalidOption(
            f"{num_ranks} ranks of {torch.get_num_threads()} threads need more than the"
            f" {count_cores()} cores of this machine.",
            remedy=f"Use --ranks-per-host {max(1, most)}, or OMP_NUM_THREADS=1.",
        )


def count_neighbours(graph: OpGraph, batch_size: int, num_ranks: int, clock: Clock) -> int:
    """How many there are: none where the model does not fit the memory so many times."""
    return num_ranks - 1 if fits_memory(graph, batch_size, clock, copies=num_ranks) else 0


@contextlib.contextmanager
def run_neighbours(
    graph: OpGraph, batch_size: int, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many neighbours at work, from the first line of the block to its end.

    This process is rank 0 meanwhile and keeps to its cores, as the others do to theirs.
    """
    if not count:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder, "graph.json")
        write_noun(graph, path)
        words = (str(path), str(batch_size), str(torch.get_num_threads()))
        command = [sys.executable, "-m", __name__, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started = [
            stack.enter_context(
                subprocess.Popen([*command, str(rank), str(count + 1)], **pipes)  # type: ignore[call-overload]
            )
            for rank in range(1, count + 1)
        ]
        for process in started:
            stack.callback(process.kill)
        for process in started:
            process.stdout.readline()  # At work, or ended: a model may refuse random data.
        stack.enter_context(kept_cores(0, count + 1))
        yield started


def work(graph: OpGraph, batch_size: int, is_over: Callable[[], bool]) -> None:
    """Repeat the step of a model until told to end."""
    rebuilt, device = rebuild_graph(graph), torch.device("cpu")
    values = run_on_fakes(rebuilt.body, graph, batch_size)
    step = prepare_step(rebuilt.body, graph, values, device)
    with torch.enable_grad():
        step()
        sys.stdout.write("at work\n")
        sys.stdout.flush()
        while not is_over():
            step()


def main() -> None:
    """One neighbour; it ends when its standard input does."""
    path, batch_size, num_threads, rank, num_ranks = sys.argv[1:]
    keep_cores(int(rank), int(num_ranks))
    torch.set_num_threads(int(num_threads))
    keep_freed_memory()
    graph = read_noun(path, OpGraph)
    work(graph, int(batch_size), lambda: bool(select.select([sys.stdin], [], [], 0)[0]))


if __name__ == "__main__":
    main()
