"""Every reader of foreign files: what it reads, files to start from, and what users do with them.

`list_readers` makes the seeds, for which all of graphplan is needed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from graphplan.cli.main import run_command
from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import CLUSTER_EXAMPLE, find_cluster, find_device_type
from graphplan.cost.learned import learn_costs
from graphplan.cost.training import read_training
from graphplan.files import encode_noun, read_noun
from graphplan.frontend import load_model_file, trace_module
from graphplan.frontend.pt2check import check_program
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.names import has_hidden
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.timeline import Timeline
from graphplan.partition import PLANNERS
from tests.pure.costsets import make_set
from tests.pure.plans import make_cluster, make_plan_example
from tests.pure.strategies import branch_edges, chain_edges
from tools.attack_kinds import ROOT, Reader
from tools.attack_runs import list_runs
from tools.attack_watch import RUNNING, watch
from tools.workloads.profiled import build_graph, guess_batch_size
from tools.workloads.workload import MaxLoadWorkload, pose_maxload, read_workload


def command(*words: str) -> Callable[[Path], str | None]:
    """A command line on files of a folder, which `{}` stands for."""

    def use(folder: Path) -> str | None:
        told, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
            run_command([word.replace("{}", str(folder)) for word in words])
        if has_hidden(told.getvalue() + errors.getvalue()):
            return "escapes: control characters reach the terminal"
        if "Traceback (most recent call last)" in errors.getvalue():
            return f"traceback: {errors.getvalue()[-300:]}"
        return None

    use.__name__ = " ".join(words[:1])
    return use


class Small(torch.nn.Module):
    """A model with the shapes of calls that graphs have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.table(words).mean(dim=1))
        first, second = self.norm(hidden).chunk(2, dim=-1)
        joined = torch.cat([first, second], dim=0).div_(2.0).view(2, -1, 4).sum(dim=0)
        return torch.nn.functional.cross_entropy(self.head(joined), labels)


def make_graph() -> OpGraph:
    """A captured graph, small enough to be measured in a moment."""
    return trace_module(
        Small(),
        lambda b: (torch.randint(0, 11, (b, 5)), torch.randint(0, 3, (b,))),
        name="small",
    ).graph


def make_program() -> bytes:
    """A saved program with a symbolic batch."""
    given = (torch.rand(3, 4),)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(torch.nn.Linear(4, 4), given, dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def repack(content: bytes, changes: dict[str, bytes]) -> bytes:
    """A saved program with other members; new ones are added."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        left = dict(changes)
        for member in old.infolist():
            root, _, name = member.filename.partition("/")
            new.writestr(member.filename, left.pop(name, b"") or old.read(member))
        for name, text in left.items():
            new.writestr(f"{root}/{name}", text)
    return made.getvalue()


def read_member(content: bytes, ending: str) -> bytes:
    """A member of a saved program."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(each for each in archive.namelist() if each.endswith(ending))
        return archive.read(name)


def load_program(folder: Path) -> str | None:
    """What `trace` does with a saved program, up to its module."""
    load_model_file(folder / "model.pt2").build()
    return None


def load_watched(folder: Path) -> str | None:
    """The same for a program that passed the check: torch runs code then, but no more than that."""
    with watch(folder, allowed=RUNNING) as seen:
        load_program(folder)
    return f"acted: {seen.found[:4]}" if seen.found else None


def use_workload(folder: Path) -> str | None:
    """Pose what a workload file asks."""
    found = read_workload(folder / "workload.json")
    if isinstance(found, MaxLoadWorkload):
        pose_maxload(found, 2)
    else:
        build_graph(found, measured_batch_size=guess_batch_size(found))
    return None


def list_readers(folder: Path) -> tuple[Reader, ...]:
    """All readers with their seeds; `folder` is for those that are made through files."""
    graph = make_graph()
    graph_text = encode_noun(graph)
    known = ("graph.json", graph_text)
    example = make_plan_example(chain_edges(2), num_micro_batches=2)
    plans = (
        encode_noun(make_plan_example().plan),
        encode_noun(make_plan_example(chain_edges(3), num_replicas=2, labels=False).plan),
        encode_noun(make_plan_example(branch_edges(2, 1), ops_per_stage=2).plan),
        (ROOT / "tests/pure/plan_version_1.json").read_bytes(),
    )
    return (
        *_list_plans(plans, example.plan, example.timeline),
        *_list_graphs(graph, known),
        *_list_clusters(known),
        *list_runs(folder, graph),
        Reader(
            "workload", "workload.json", _list_workloads(),
            lambda folder: read_workload(folder / "workload.json"), (use_workload,),
        ),
        Reader(
            "pt2", "model.pt2", (make_program(),),
            lambda folder: check_program(folder / "model.pt2"), (load_watched,),
        ),
    )  # fmt: skip


def _list_plans(plans: Sequence[bytes], own: Plan, timeline: Timeline) -> tuple[Reader, ...]:
    out = "{}/out"
    uses = (
        command("check", "{}/plan.json"),
        command("simulate", "{}/plan.json", "-o", f"{out}.json"),
        command("show", "{}/plan.json"),
        command("show", "{}/plan.json", "--html", f"{out}.html", "--svg", f"{out}.svg"),
        command("show", "{}/plan.json", "--timeline", f"{out}.trace"),
        command("export", "{}/plan.json", "--to", "dot", "-o", f"{out}.dot"),
        command("export", "{}/plan.json", "--to", "json"),
        command("staleness", "{}/plan.json", "--svg", f"{out}.svg"),
    )
    compare = (command("compare-run", "{}/plan.json", "{}/run.json"),)
    sound = (("plan.json", encode_noun(own)),)
    return (
        Reader("plan", "plan.json", tuple(plans),
               lambda folder: read_noun(folder / "plan.json", Plan), uses, share=5),
        Reader("plan.gz", "plan.json.gz", (gzip.compress(plans[0], mtime=0),),
               lambda folder: read_noun(folder / "plan.json.gz", Plan)),
        Reader("timeline", "run.json", (encode_noun(timeline),),
               lambda folder: read_noun(folder / "run.json", Timeline), compare, sound),
    )  # fmt: skip


def _list_searches(*words: str) -> tuple[Callable[[Path], str | None], ...]:
    """The same search by all planners; the last one is what users take."""
    options = ("--no-baselines", "--effort", "0.1", "-o", "{}/out.json", *words)
    return tuple(
        command("search", "{}/graph.json", "--planner", planner, *options)
        for planner in (*PLANNERS, "auto")
    )


def _list_graphs(graph: OpGraph, known: tuple[str, bytes]) -> tuple[Reader, ...]:
    searches = _list_searches("--gpus", "2")
    by_table = _list_searches("--gpus", "2", "--costs", "{}/table.json")
    by_learned = _list_searches("--gpus", "2", "--costs", "learned:{}/cost.json")
    out = ("-o", "{}/out.json")
    measure = ("--device", "cpu", "--ranks-per-host", "1", "--batch-sizes", "2", "--no-cache")
    table = estimate_table(graph, find_device_type("a100-80gb"), batch_sizes=(1, 2, 4, 8))
    learned = learn_costs(make_set(8), hold_out=("net-5",), epochs=1, num_trees=8, seed=1)
    sets = encode_noun(make_set(3))
    return (
        Reader(
            "graph", "graph.json", (known[1],),
            lambda folder: read_noun(folder / "graph.json", OpGraph),
            (command("profile", "{}/graph.json", *measure, *out),
             searches[-1],
             command("profile", "{}/graph.json", "--estimate", "h100", *out)),
            share=4, searches=searches,
        ),
        Reader(
            "table", "table.json", (encode_noun(table),),
            lambda folder: read_noun(folder / "table.json", ProfileTable),
            by_table[-1:], (known,), searches=by_table,
        ),
        Reader(
            "learned", "cost.json", (encode_noun(learned),),
            lambda folder: read_noun(folder / "cost.json", LearnedCosts),
            (command("profile", "{}/graph.json", "--costs", "learned:{}/cost.json", *out),
             by_learned[-1]),
            (known,), searches=by_learned,
        ),
        Reader("costset", "set.json", (sets,),
               lambda folder: read_training([folder / "set.json"]),
               (command("learn", "{}/set.json", "--epochs", "1", *out),)),
    )  # fmt: skip


def _list_clusters(known: tuple[str, bytes]) -> tuple[Reader, ...]:
    by_json = _list_searches("--cluster", "{}/lab.json")
    by_toml = _list_searches("--cluster", "{}/lab.toml")
    return (
        Reader("cluster", "lab.json", (encode_noun(make_cluster(3)),),
               lambda folder: read_noun(folder / "lab.json", Cluster),
               (command("clusters", "{}/lab.json"), by_json[-1]), (known,), searches=by_json),
        Reader("toml", "lab.toml", (CLUSTER_EXAMPLE.encode(),),
               lambda folder: find_cluster(str(folder / "lab.toml")),
               (command("clusters", "{}/lab.toml"), by_toml[-1]), (known,), searches=by_toml),
    )  # fmt: skip


def _list_workloads() -> tuple[bytes, ...]:
    """The smallest published file of each kind."""
    folder = ROOT / "tools" / "workloads"
    kinds: dict[str, list[bytes]] = {}
    for path in folder.glob("*.json"):
        kinds.setdefault(path.name.split("-")[0], []).append(path.read_bytes())
    return tuple(min(texts, key=len) for _, texts in sorted(kinds.items()))
