"""Launching: one process for each device of a plan on this machine, by torch's elastic agent.

The agent starts the processes, gives them a rendezvous and ends all of them when one fails. What is
added here: plan and options are checked before anything starts, and the first cause of a failure is
found among what the ranks left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from graphplan.errors import InvalidOption, RunFailed
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan_runtime.faults.failures import Failure, first_cause, read_failures
from graphplan_runtime.faults.status import read_status
from graphplan_runtime.options import RunOptions

FOLDER = "GRAPHPLAN_RUN_FOLDER"
"""Environment variable: where ranks leave their status and their failures."""
KILL_AFTER_S = 2
"""How long ranks have to end by themselves when one has failed."""


def launch_ranks(options: RunOptions) -> None:
    """Run a plan on this machine; raises RunFailed with the first cause if a rank fails."""
    plan = read_noun(options.plan, Plan)
    check_devices(plan, options)
    if options.bind_cores is None:
        options = msgspec.structs.replace(options, bind_cores=True)
    with tempfile.TemporaryDirectory(prefix="graphplan-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ[FOLDER] = name
        with quiet_agent(), Reaper(folder):
            failures = start_agent(plan, options, folder)
        if failures is not None:
            raise explain_failures(plan, folder, failures)


def check_devices(plan: Plan, options: RunOptions) -> None:
    """Refuse a plan that this machine cannot host, before any process starts."""
    if options.device == "cpu" or options.emulate:
        return
    import torch

    num_ranks = len(plan.program)
    num_here = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if options.device and not num_here:
        raise InvalidOption(
            f"This machine has no {options.device} device.",
            remedy="Use --device cpu, or run where the accelerators are.",
        )
    if 0 < num_here < num_ranks:
        raise InvalidOption(
            f"The plan wants {num_ranks} devices; this machine has {num_here}.",
            remedy=f"Search with --gpus {num_here}, start the run under torchrun on several"
            " machines, or use --device cpu or --emulate.",
        )


def start_agent(
    plan: Plan, options: RunOptions, folder: Path
) -> dict[int, tuple[int, float]] | None:
    """Run until the end; None, or the exit codes of the ranks that failed by rank."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    num_ranks = len(plan.program)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_ranks)))
    others = dict.fromkeys(range(1, num_ranks), Std.ALL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects={**others, 0: Std.NONE}),
    )
    arguments = ["-m", "graphplan_runtime", msgspec.json.encode(options).decode()]
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise RunFailed(
            f"The run was ended by {error.sigval.name}.", remedy="Start it again, with --resume."
        ) from None
    except ChildFailedError as error:
        now = time.time()
        return {rank: (failure.exitcode, now) for rank, failure in error.failures.items()}
    return None


class Reaper:
    """Kills ranks that do not end by themselves soon after a failure.

    The agent asks them to, but waits half a minute before it insists; a process that is stopped, or
    that hangs in the kernel's or a driver's hands, does not hear it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reaper", daemon=True)

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.2):
            if any(self.folder.glob("failure-*.json")):
                self._stopped.wait(KILL_AFTER_S)
                for path in self.folder.glob("pid-*"):
                    self._kill(path)
                return

    @staticmethod
    def _kill(path: Path) -> None:
        """Kill a rank if it still is a child of ours."""
        try:
            pid = int(path.read_text())
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            return  # It has ended.


def explain_failures(plan: Plan, folder: Path, exits: dict[int, tuple[int, float]]) -> RunFailed:
    """The first cause of a failed run, from what the ranks left behind."""
    failures = read_failures(folder)
    told = {failure.rank for failure in failures}
    for rank, (code, now) in exits.items():
        if rank not in told:
            failures.append(describe_exit(plan, folder, rank, code, now))
    cause = first_cause(failures)
    assert cause is not None
    place = read_status(folder / f"status-{cause.rank}") if cause.kind == "hang" else None
    if place is not None:  # More recent than what others last heard of the rank.
        line = plan.parse_program().instructions_by_device[cause.rank]
        cause = msgspec.structs.replace(cause, place=place.describe(line))
    where = f"rank {cause.rank} ({cause.place})"
    remedy = cause.remedy + (f"\n\n{cause.trace.rstrip()}" if cause.trace else "")
    return RunFailed(
        f"The run failed at {where}: {cause.message}", remedy=remedy, exit_code=cause.exit_code
    )


def describe_exit(plan: Plan, folder: Path, rank: int, code: int, now: float) -> Failure:
    """What can be said of a rank that ended without a word."""
    place = read_status(folder / f"status-{rank}")
    line = plan.parse_program().instructions_by_device[rank]
    where = place.describe(line) if place else "starting"
    by_agent = code == -signal.SIGTERM
    message, remedy = f"ended with exit code {code}", "Look at the log of this rank."
    if code < 0:
        message = f"was killed by {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        remedy = "Nobody but the system or a user sends it: look for the out-of-memory killer."
    return Failure(
        rank=rank,
        kind="consequence" if by_agent else "signal",
        place=where,
        message=message,
        remedy=remedy,
        time_s=now,
    )


@contextlib.contextmanager
def quiet_agent() -> Iterator[None]:
    """The agent's own reports would come before, and hide, the first cause."""
    loggers: list[Any] = [
        logging.getLogger("torch.distributed.elastic"),
        logging.getLogger("torch"),
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
