"""The worker: one rank of a run, from its environment to its exit code."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store
from torch.distributed.rendezvous import rendezvous

from graphplan.cost.allocator import keep_freed_memory
from graphplan.cost.cores import keep_cores
from graphplan.errors import InvalidOption
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Instruction
from graphplan_runtime.checkpoints.lock import release_locks
from graphplan_runtime.faults.board import Board, FolderBoard, StoreBoard, check_private
from graphplan_runtime.faults.failures import Failure, describe_error, tell_agent, write_failure
from graphplan_runtime.faults.monitor import Monitor, end_process
from graphplan_runtime.faults.pulse import Pulse
from graphplan_runtime.faults.status import Phase, Status
from graphplan_runtime.launch import FOLDER, LAUNCHER
from graphplan_runtime.messages.doors import shut_doors
from graphplan_runtime.messages.transport import GROUP_TIMEOUT
from graphplan_runtime.options import RunOptions

CAUSE_WAIT_S = 4.0
"""How long a rank that meets a consequence waits for the cause to be told."""
AGENT_WAIT_S = 2.0
"""How long torchrun has to end by itself when its host is cut off."""


def run_rank(options: RunOptions) -> None:
    """Run one rank under torchrun or our launcher; does not return when it fails."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Worker(options).run()
    except KeyboardInterrupt:
        end_process(130)


class Worker:
    """Connects, runs, and tells why when something fails."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.num_ranks = int(os.environ["WORLD_SIZE"])
        self.folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
        if self.folder:
            check_private(self.folder)
        self.status = Status(self.folder / f"status-{self.rank}" if self.folder else None)
        self.board: Board | None = FolderBoard(self.folder) if self.folder else None
        self.lines: tuple[tuple[Instruction, ...], ...] = ((),) * self.num_ranks
        """What every rank runs; nothing until the plan is read."""

    def run(self) -> None:
        """Everything, with failures turned into an exit code."""
        try:
            self._run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(error)

    def _run(self) -> None:
        plan = read_noun(self.options.plan, Plan)
        if self.num_ranks != len(plan.program):
            raise InvalidOption(
                f"The plan has {len(plan.program)} devices, the run {self.num_ranks} processes.",
                remedy=f"Start {len(plan.program)} processes in all (torchrun --nnodes N"
                " --nproc-per-node M).",
            )
        self.lines = plan.parse_program().instructions_by_device
        device = choose_device(self.options)
        self.status.enter(Phase.CONNECTING)
        store = self._find_store()
        if self.board is None:
            self.board = StoreBoard(store.clone())  # type: ignore[attr-defined]
        monitor = Monitor(
            self.board,
            self.status,
            rank=self.rank,
            lines=self.lines,
            hang_s=self.options.hang_timeout_s,
            end=self._end,
            pulse=None if self.options.emulate else Pulse(),
            runs_on_host=device.type == "cpu",
            parent=int(os.environ[LAUNCHER]) if self.folder else None,
        )
        monitor.start()
        self._connect(store, device)
        self._work(plan, device)
        self.status.enter(Phase.ENDING)
        dist.barrier()
        monitor.stop()
        self.status.enter(Phase.DONE)
        dist.destroy_process_group()

    def _find_store(self) -> Store:
        """Where the groups' members find each other: a private file, or torchrun's rendezvous."""
        if self.folder:
            store: Store = FileStore(str(self.folder / "store"), self.num_ranks)
            store.set_timeout(GROUP_TIMEOUT)
        else:
            store = next(iter(rendezvous("env://", self.rank, self.num_ranks)))[0]
        return store

    def _connect(self, store: Store, device: torch.device) -> None:
        if device.type == "cpu":
            require_handles(self.num_ranks)
        with shut_doors():
            dist.init_process_group(
                name_backend(device),
                store=store,
                rank=self.rank,
                world_size=self.num_ranks,
                timeout=GROUP_TIMEOUT,
                device_id=None if device.type == "cpu" else device,
            )

    def _work(self, plan: Plan, device: torch.device) -> None:
        assert self.board is not None
        if self.options.emulate:
            from graphplan_runtime.emulate import emulate_plan

            emulate_plan(plan, self.options, status=self.status, board=self.board)
            return
        from graphplan_runtime.train import train_plan

        train_plan(plan, self.options, device=device, status=self.status, board=self.board)

    # -- failure ---------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Tell the first cause: this error, or the one that it is a consequence of."""
        place = self.status.read().describe(self.lines[self.rank])
        failure = describe_error(error, rank=self.rank, place=place)
        if self.board is not None:
            try:
                if not failure.is_cause:
                    failure = self._wait_for_cause() or failure
                failure = self.board.post_failure(failure, rank=self.rank)
            except Exception:
                # The store is gone with the host of rank 0: what we know is all that is known.
                pass
        self._end(failure)

    def _wait_for_cause(self) -> Failure | None:
        assert self.board is not None
        deadline = time.monotonic() + CAUSE_WAIT_S
        while time.monotonic() < deadline:
            found = self.board.read_failure()
            if found is not None and found.is_cause:
                return found
            time.sleep(0.1)
        return None

    def _end(self, failure: Failure) -> None:
        release_locks()  # No `finally` will do it: the main thread may never return.
        if self.folder:
            write_failure(failure, self.folder, rank=self.rank)
        else:  # Under torchrun there is nobody else to tell it.
            tell_agent(failure)
            trace = f"\n{failure.trace}" if failure.rank == self.rank else ""
            sys.stderr.write(f"graphplan: rank {self.rank} ends because of {failure}{trace}\n")
            sys.stderr.flush()
            if failure.kind == "cut" and "TORCHELASTIC_RUN_ID" in os.environ:
                end_agent(os.getppid())
        end_process(failure.exit_code or 1)


def name_backend(device: torch.device) -> str:
    """gloo for tensors of the host, and what torch has for the kind of device."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device.type)}"


def require_handles(num_ranks: int) -> None:
    """Have as many file descriptors as gloo needs: where it finds none, it ends the process.

    A group takes three of them, one to listen and one for every other member; there are six groups
    of all ranks (transport.py), and some files.
    """
    needed = 12 + 6 * (num_ranks + 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise InvalidOption(
            f"too many open files: {num_ranks} ranks need about {needed} file descriptors each, the"
            f" limit is {hard}.",
            remedy=f"Raise it (ulimit -n {max(4096, needed)}) and start again.",
        )
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def end_agent(agent: int) -> None:
    """End torchrun on a host that is cut off.

    It waits for its rendezvous on the lost host, without a limit of time, and would not even see
    that its ranks have ended.
    """
    with contextlib.suppress(OSError):
        os.kill(agent, signal.SIGTERM)
        deadline = time.monotonic() + AGENT_WAIT_S
        while os.getppid() == agent and time.monotonic() < deadline:
            time.sleep(0.1)
        if os.getppid() == agent:
            os.kill(agent, signal.SIGKILL)


def choose_device(options: RunOptions) -> torch.device:
    """The device of this rank."""
    kind = options.device
    if options.emulate:
        kind = "cpu"
    if kind is None:
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        kind = found.type if found is not None else "cpu"
    if kind == "cpu":
        if options.bind_cores and not options.emulate:
            num_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            keep_cores(int(os.environ.get("LOCAL_RANK", "0")), num_here)
        keep_freed_memory()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return torch.device("cpu")
    first = torch.device(kind)  # cuda:2 means the GPUs of this host from number 2 on.
    device = torch.device(first.type, (first.index or 0) + int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device.index)
    return device
