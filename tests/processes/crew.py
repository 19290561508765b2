"""Crew: processes that stay between tests; torch is imported, and models are captured, once."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import pytest

Job = Callable[..., Any]
JOB_SECONDS = 300


class Crew:
    """Runs a function on ranks 0..n-1 of a fresh gloo group and returns what each of them gave.

    Members come from a process that has captured the models of this folder; those of `fork`, from
    this one, with whatever it has captured.
    """

    def __init__(self, folder: Path, *, method: Literal["forkserver", "fork"] = "forkserver"):
        self.folder = folder
        self.method = method
        self.num_jobs = 0
        self.members: list[tuple[BaseProcess, Connection]] = []

    def run(self, num_ranks: int, job: Job, *args: Any) -> list[Any]:
        """The results by rank; fails with the traceback of the first rank that failed."""
        while len(self.members) < num_ranks:
            self._hire()
        self.num_jobs += 1
        store = str(self.folder / f"store{self.num_jobs}")
        pipes = [pipe for _, pipe in self.members[:num_ranks]]
        for rank, pipe in enumerate(pipes):
            pipe.send((job, args, rank, num_ranks, store))
        answers = self._collect(pipes)
        failed = [(rank, text) for rank, (kind, text) in enumerate(answers) if kind == "error"]
        if failed:
            self.dismiss()
            pytest.fail("\n".join(f"rank {rank}: {text}" for rank, text in failed))
        return [result for _, result in answers]

    def _collect(self, pipes: list[Connection]) -> list[tuple[str, Any]]:
        """Answers by rank; when one fails, the others have a few seconds left."""
        answers: list[tuple[str, Any]] = [("error", "no answer")] * len(pipes)
        waiting, deadline = list(pipes), time.monotonic() + JOB_SECONDS
        while waiting and time.monotonic() < deadline:
            for ready in multiprocessing.connection.wait(waiting, timeout=1):
                assert isinstance(ready, Connection)
                answer = answers[pipes.index(ready)] = receive(ready)
                waiting.remove(ready)
                if answer[0] == "error":
                    deadline = min(deadline, time.monotonic() + 5)
        return answers

    def _hire(self) -> None:
        context: Any = multiprocessing.get_context(self.method)
        context.set_forkserver_preload(["tests.processes.preload"])
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        with short_names():
            process.start()
        self.members.append((process, ours))

    def dismiss(self) -> None:
        """End all members."""
        for process, _ in self.members:
            process.kill()
            process.join()
        self.members.clear()


def receive(pipe: Connection) -> tuple[str, Any]:
    """The answer of a member, also of one that has died: the others of its test must not wait."""
    try:
        answer: tuple[str, Any] = pipe.recv()
    except EOFError:
        return "error", "the process ended without an answer"
    return answer


SHORT = "/tmp"
"""Where multiprocessing makes its sockets, whose names have at most 107 bytes."""


@contextlib.contextmanager
def short_names() -> Iterator[None]:
    """Temporary files go to a folder with a short name: the first start makes a socket there."""
    before, tempfile.tempdir = tempfile.tempdir, SHORT
    try:
        yield
    finally:
        tempfile.tempdir = before


def serve(pipe: Connection) -> None:
    """Run jobs until the pipe closes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    tempfile.tempdir = SHORT  # Tensors of an answer go through a socket too.
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            job, args, rank, num_ranks, store = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job, args, rank, num_ranks, store))


def work(job: Job, args: Any, rank: int, num_ranks: int, store: str) -> tuple[str, Any]:
    """Run one job in a process group of its own."""
    import torch
    import torch.distributed as dist

    dtype = torch.get_default_dtype()
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks
        )
        result = job(*args)
        dist.barrier()
        dist.destroy_process_group()
        return "done", result
    except BaseException:
        return "error", traceback.format_exc()
    finally:
        torch.set_default_dtype(dtype)
