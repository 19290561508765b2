"""What runs leave, and what the next run does with it: resumes, trains, saves into the same folder.

The next run is one rank with two stages under the policy stash, so that its checkpoints hold
batches in flight. Its process group is torch's fake one, which opens nothing and has no threads
that a fork would miss.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from graphplan.captures import store
from graphplan.captures.entry import Entry, Evidence
from graphplan.captures.witness import list_folders
from graphplan.cost.cache import Measurement, ProfileCache
from graphplan.errors import InvalidFile
from graphplan.files import encode_noun
from graphplan.frontend import trace_module
from graphplan.nouns.opgraph import OpGraph
from graphplan_runtime.checkpoints.checkpoint import read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.lock import LOCK, Lock, decode_holder
from graphplan_runtime.checkpoints.shelf import find_checkpoint
from graphplan_runtime.faults.failures import Failure, first_cause, read_failures, write_failure
from graphplan_runtime.faults.status import read_status
from graphplan_runtime.pipeline import Pipeline
from tests.processes.plans import plan_by_hand
from tools.attack_kinds import Reader

BATCH_SIZE = 4


class Trainee(torch.nn.Module):
    """Two layers and dropout, which needs the checkpoint's seed."""

    def __init__(self) -> None:
        super().__init__()
        self.low = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.1))
        self.high = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.high(self.low(x))
        return hidden.square().mean()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _batch(size: int) -> torch.Tensor:
    return torch.ones(size, 3)


@functools.cache
def make_run() -> Pipeline:
    """A run that is resumed again and again; each time it takes all its state from the file."""
    captured = trace_module(Trainee(), _batch, name="trainee")
    stages = {op.name: int("high" in op.module or not op.module) for op in captured.graph.ops}
    plan = plan_by_hand(
        captured.graph, stages, devices=[(0,), (0,)], batch_size=BATCH_SIZE, micro_batch_size=2,
        policy="stash",
    )  # fmt: skip
    with alone():
        return Pipeline(
            plan,
            captured,
            optimizer=torch.optim.Adam,
            scheduler=lambda each: torch.optim.lr_scheduler.StepLR(each, 2),
        )


def resume_run(folder: Path) -> str | None:
    """What `run --resume saved --save saved` does, whatever the checksums say."""
    run = make_run()
    with alone():
        try:
            run.load(folder / "saved", verify=False)
            run.step(_batch(BATCH_SIZE))
            run.save(folder / "saved")
        finally:
            run.close()
    return None


def save_beside(folder: Path) -> str | None:
    """What `run --save saved` does in a folder that others have saved into."""
    run = make_run()
    with alone():
        try:
            run.restart()
            run.save(folder / "saved", keep_last=1)
        finally:
            run.close()
    return None


def read_folder(folder: Path) -> None:
    """Resume: the newest checkpoint, its manifest and all of its tensors."""
    found = find_checkpoint(folder / "saved")
    if found is None:
        raise InvalidFile("There is no checkpoint.", remedy="Train with --save saved.")
    for verify in (False, True):
        manifest = read_manifest(found.path, verify=verify)
        manifest.list_states()
        read_checkpoint(found.path, manifest, set(manifest.file_by_tensor), verify=verify)


def take_lock(folder: Path) -> str | None:
    """What a run does with the lock that it finds: it is refused, or takes over."""
    lock = Lock(folder)
    lock.take(lambda word: None)
    lock.refresh()
    lock.release()
    return None


def tell_failures(folder: Path) -> None:
    """What the launcher says of a failed run."""
    str(first_cause(read_failures(folder)))


def add_failure(folder: Path) -> str | None:
    """A rank that fails beside one that has told."""
    write_failure(_FAILURE, folder, rank=0)
    tell_failures(folder)
    return None


def describe_status(folder: Path) -> None:
    """Where a rank was."""
    found = read_status(folder / "status")
    if found is not None:
        found[0].describe(make_run().plan.parse_program().instructions_by_device[0])


def read_cache(folder: Path) -> None:
    """A cache never stops anybody: what cannot be read counts as empty."""
    cache = ProfileCache("here", folder=folder)
    cache.find("call")
    cache.find_host()


def fill_cache(folder: Path) -> str | None:
    """Add a measurement to what is there."""
    cache = ProfileCache("here", folder=folder)
    cache.add("call", Measurement(forward_s=1e-3))
    cache.save()
    return None


def find_captured(folder: Path) -> object:
    """What `trace` does with a kept capture."""
    with mock.patch.object(store, "default_folder", lambda: folder):
        return store.find_capture(_REQUEST)


def keep_captured(folder: Path) -> str | None:
    """Capture anew beside it."""
    with mock.patch.object(store, "default_folder", lambda: folder):
        store.keep_capture(_REQUEST, _EVIDENCE, make_run().captured.graph)
    return None


_FAILURE = Failure(rank=0, kind="error", place="step 3", message="lost", remedy="Try again.")
_REQUEST = '{"model": "small"}'
_EVIDENCE = Evidence(files={"/nowhere/model": None}, stamps={"/nowhere/x": ""},
                     folders=list_folders(set(), set()), names=(), missing=("nowhere",),
                     variables={"NOWHERE": None}, arguments=None)  # fmt: skip


def list_runs(folder: Path, graph: OpGraph) -> tuple[Reader, ...]:
    """What runs leave: checkpoints, locks, failures, where a rank was, and the caches."""
    run = make_run()
    with alone():
        for _ in range(3):
            run.step(_batch(BATCH_SIZE))
        run.save(folder / "seeds")
        run.close()
    seeds = sorted(path for path in (folder / "seeds").rglob("*") if path.is_file())
    whole = tuple(
        (f"saved/{path.relative_to(folder / 'seeds')}", path.read_bytes()) for path in seeds
    )
    cache = ProfileCache("here", folder=Path())
    cached = {"0" * 24: Measurement(forward_s=1e-3)}
    with mock.patch.object(store, "default_folder", Path):
        capture = str(store._place(_REQUEST))
    entry = encode_noun(Entry(request=_REQUEST, evidence=_EVIDENCE, graph=graph))
    gone = msgspec.structs.replace(Lock(folder).own, pid=(1 << 22) + 1)
    return (
        *(Reader(f"checkpoint {Path(name).name}", name, (content,), read_folder,
                 (resume_run, save_beside), beside=whole) for name, content in whole),
        Reader("capture", capture, (entry,), find_captured, (keep_captured,)),
        Reader("lock", LOCK, (msgspec.json.encode(gone),),
               lambda folder: decode_holder((folder / LOCK).read_bytes()), (take_lock,)),
        Reader("failure", "failure-0.json", (msgspec.json.encode(_FAILURE),), tell_failures,
               (add_failure,)),
        Reader("status", "status", (bytes(8 * 5),), describe_status),
        Reader("cache", cache.path.name, (msgspec.json.encode(cached),), read_cache,
               (fill_cache,)),
    )  # fmt: skip
