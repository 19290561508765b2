"""Reader: a kind of foreign file; and which modules read which kind.

`READING` names each module that opens or decodes anything, so that none is forgotten: a test walks
the sources and compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

READING: dict[str, str] = {
    "graphplan/api.py": "plan",
    "graphplan/files.py": "all",
    "graphplan/jsontext.py": "all",
    "tools/workloads/workload.py": "workload",
    "tools/workloads/piper.py": "workload",
    "graphplan/cli/check.py": "plan",
    "graphplan/cli/compare_run.py": "timeline",
    "graphplan/cli/export.py": "plan",
    "graphplan/cli/learn.py": "costset",
    "graphplan/cli/options.py": "graph, table, learned",
    "graphplan/cli/show.py": "plan",
    "graphplan/cli/simulate.py": "plan",
    "graphplan/cli/staleness.py": "plan",
    "graphplan/captures/store.py": "capture",
    "graphplan/captures/witness.py": "no foreign file: the model's own sources, to hash them",
    "graphplan/cli/main.py": "no file: the null device, when nobody reads what is printed",
    "graphplan/cost/cache.py": "cache",
    "graphplan/cost/expected.py": "no foreign file: our own steps.toml",
    "graphplan/cost/interference.py": "no foreign file: our own parameters",
    "graphplan/cost/laws/residual.py": "no foreign file: our own trees",
    "graphplan/cost/hardware.py": "cluster, toml",
    "graphplan/cost/tomlfile.py": "toml",
    "graphplan/cost/training.py": "costset",
    "graphplan/cost/measure_neighbours.py": "graph",
    "graphplan/frontend/pt2.py": "pt2",
    "graphplan/frontend/pt2check.py": "pt2",
    "runtime/checkpoints/checkpoint.py": "checkpoint",
    "runtime/checkpoints/tensorfile.py": "checkpoint",
    "runtime/checkpoints/shelf.py": "checkpoint",
    "runtime/checkpoints/writing.py": "checkpoint",
    "runtime/checkpoints/lock.py": "lock",
    "runtime/faults/failures.py": "failure",
    "runtime/faults/status.py": "status",
    "runtime/launch.py": "plan",
    "runtime/train.py": "checkpoint",
    "runtime/worker.py": "plan",
    "runtime/streams/midstream.py": "checkpoint",
    "graphplan/cost/measure_clock.py": "no foreign file: /proc and /dev/null",
    "graphplan/nouns/stages.py": "plan",
    "runtime/doctor.py": "no foreign file: what its own ranks wrote into its private folder",
    "runtime/hosts.py": "no foreign file: the board of the run",
    "runtime/saving.py": "no file: takes over what checkpoint.py has read",
    "runtime/checkpoints/snapshot.py": "no file: what ranks tell each other",
    "graphplan/report/page.py": "no foreign file: the template of the package",
    "graphplan/export/torch_launcher.py": "no foreign file: the folder that it is exported with",
    "graphplan/export/deepspeed_module.py": "no foreign file: the folder that it is exported with",
    "graphplan/export/torchtitan_config.py": "no foreign file: the folder that it is exported with",
    "runtime/clocks.py": "no foreign file: /proc",
    "runtime/faults/board.py": "no foreign file: the private folder of the run",
    "runtime/faults/pulse.py": "no foreign file: /proc",
    "runtime/messages/doors.py": "no foreign file: /proc",
    "runtime/hostprofile.py": "no foreign file: its own folder",
    "runtime/report.py": "no file: the store of the run",
    "runtime/__main__.py": "no file: the launcher's own arguments",
}
"""Modules that open or decode something, with the readers below that pass through them."""

COVERED = (
    *(name for name, readers in READING.items() if not readers.startswith("no ")
      and "cli/" not in name and "launch" not in name and "worker" not in name
      and "train.py" not in name
      and "neighbours" not in name and "midstream" not in name and "api.py" not in name),
    *(f"graphplan/nouns/{name}.py" for name in (
        "cluster", "costset", "learned", "names", "opgraph", "plan", "policy", "prices", "schedule",
        "stages", "table", "task", "tensor", "timeline", "training")),
    *(f"graphplan/cost/measure_{name}.py" for name in ("allowed", "body", "limits", "rebuild")),
    "graphplan/cost/arrays.py", "graphplan/cost/predict.py", "tools/workloads/profiled.py",
)  # fmt: skip
"""Modules whose lines the fuzzer counts."""


class Reader(NamedTuple):
    """A kind of file: names, seeds, how it is read, and what users do with it."""

    kind: str
    name: str
    """Of the file, below a folder."""
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]
    """Gets the folder that holds the file."""
    uses: tuple[Callable[[Path], str | None], ...] = ()
    """The same; each returns what went wrong."""
    beside: tuple[tuple[str, bytes], ...] = ()
    """Sound files in the same folder."""
    share: int = 1
    """How many mutants of the whole."""
    searches: tuple[Callable[[Path], str | None], ...] = ()
    """The use `search` with other planners, the quickest first: a tenth of its time or less."""

    def hurry(self) -> Reader:
        """The same with the quickest search only."""
        quickest = self.searches[:1]
        found = ((quickest or (use,))[0] if use.__name__ == "search" else use for use in self.uses)
        return self._replace(uses=tuple(found), searches=())

    def pick_use(self, rng: random.Random) -> Callable[[Path], str | None]:
        """One of the uses; if that is a search, by any planner."""
        use = rng.choice(self.uses)
        return rng.choice((use, *self.searches)) if use.__name__ == "search" else use

    def place(self, folder: Path, text: bytes) -> None:
        """Put a file and its neighbours where they are read."""
        for name, content in (*self.beside, (self.name, text)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
