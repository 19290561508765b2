"""The planner: from an op graph to a checked plan, without torch."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from graphplan.cli.main import COMMANDS, command_line, run_command
from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan, UnknownName
from graphplan.files import encode_noun, read_noun, write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.planner.collect import schedule_prices
from graphplan.planner.judge import judge_stages
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import pose_problem
from graphplan.planner.search import search_plan
from graphplan.planner.sequential import chain_stages
from graphplan.planner.whatif import compare_planners, simulate_plan
from graphplan.referee import check_plan
from tests.pure.opgraphs import graph, mlp, op, spec

QUICK = SearchOptions(batch_size=32, planner="chain")
EQUAL = SearchOptions(
    batch_size=32, planner="equal", schedule="1f1b", micro_batch_sizes=(4,), baselines=False
)


def towers(num_towers: int = 2, length: int = 4, width: int = 2048) -> OpGraph:
    """Towers of linear layers that are added up at the end."""
    ops, ends = [], []
    for t in range(num_towers):
        value = f"x{t}"
        for i in range(length):
            name, weights = f"t{t}l{i}", (f"w{t}_{i}",)
            ops.append(op(name, "linear(%0, @0)", (value,), spec("b", width), weights=weights))
            value = name
        ends.append(value)
    ops.append(op("total", "cat([%0, %1])", tuple(ends), spec("b", num_towers * width)))
    return graph(
        ops,
        inputs={f"x{t}": spec("b", width) for t in range(num_towers)},
        weights={f"w{t}_{i}": spec(width, width) for t in range(num_towers) for i in range(length)},
    )


def test_a_search_gives_a_legal_plan_with_bound_and_baselines() -> None:
    """Everything that a plan promises is there and consistent."""
    plan = search_plan(mlp(8, 1024), find_cluster("summit", gpus=4), QUICK)
    assert not check_plan(plan).violations
    assert plan.bound.step_s <= plan.prediction.step_s
    assert plan.gap >= 0
    assert set(plan.baselines) == {"data-parallel", "zero-1", "fsdp", "linear", "sequential"}
    assert plan.training.batch_size == 32
    assert simulate_plan(plan).makespan_s == pytest.approx(plan.prediction.step_s)
    assert len(plan.labels) == len(plan.stages.stages)


def test_the_same_search_gives_the_same_bytes() -> None:
    """Plans are deterministic."""
    cluster = find_cluster("summit", gpus=4)
    first, second = (search_plan(towers(), cluster, QUICK) for _ in range(2))
    assert encode_noun(first) == encode_noun(second)


def test_a_plan_file_reads_back(tmp_path: Path) -> None:
    """Round trip is identity."""
    plan = search_plan(mlp(4, 64), find_cluster(None, gpus=2), QUICK)
    write_noun(plan, tmp_path / "plan.json")
    assert read_noun(tmp_path / "plan.json", Plan) == plan


def test_what_does_not_fit_is_an_error_with_advice() -> None:
    """A model larger than all devices together cannot be planned."""
    cluster = find_cluster("summit", gpus=1)
    with pytest.raises(NoFeasiblePlan) as caught:
        search_plan(mlp(64, 16384), cluster, QUICK)
    assert caught.value.remedy


def test_more_devices_never_hurt_the_best_plan() -> None:
    """Twice the devices, at most the same step time."""
    steps = [
        search_plan(towers(), find_cluster("summit", gpus=gpus), QUICK).prediction.step_s
        for gpus in (1, 2, 4)
    ]
    assert steps == sorted(steps, reverse=True)


def test_unknown_names_are_refused_before_any_work() -> None:
    """Planner, objective, policy and schedule are checked."""
    with pytest.raises(UnknownName, match="Did you mean 'chain'"):
        SearchOptions(planner="chian")
    with pytest.raises(UnknownName, match="objective"):
        SearchOptions(objective="speed")
    with pytest.raises(UnknownName, match="weight policy"):
        SearchOptions(policy="async")
    with pytest.raises(UnknownName, match="Did you mean '1f1b'"):
        SearchOptions(schedule="1f1")
    with pytest.raises(UnknownName, match="Did you mean 'adam'"):
        SearchOptions(optimizer="adm")
    with pytest.raises(UnknownName, match="Did you mean 'bfloat16'"):
        SearchOptions(precision="bf16")
    for limit_s in (0, -1, math.nan, math.inf):
        with pytest.raises(InvalidOption, match="time limit"):
            SearchOptions(time_limit_s=limit_s)
    for effort in (0, -1, math.nan, math.inf, 1001):
        with pytest.raises(InvalidOption, match="effort"):
            SearchOptions(effort=effort)


def test_simulating_elsewhere_needs_the_model() -> None:
    """Another cluster or batch changes the timeline; the wrong graph is refused."""
    model = mlp(8, 1024)
    plan = search_plan(model, find_cluster("summit", gpus=2), QUICK)
    faster = simulate_plan(plan, graph=model, cluster=find_cluster("dgx-h100", gpus=2))
    assert faster.makespan_s < plan.prediction.step_s
    assert simulate_plan(plan, batch_size=64).makespan_s > plan.prediction.step_s
    with pytest.raises(InvalidOption, match="The plan is for the graph"):
        simulate_plan(plan, graph=mlp(7, 1024), cluster=find_cluster("summit", gpus=2))
    with pytest.raises(InvalidOption, match="multiple of every micro-batch"):
        simulate_plan(plan, batch_size=33)


def test_compare_has_a_row_for_every_planner_and_schedule() -> None:
    """Rows that cannot be made say why."""
    rows = compare_planners(
        mlp(4, 256),
        find_cluster("summit", gpus=2),
        QUICK,
        planners=("data-parallel", "equal", "chain"),
        schedules=("gpipe", "1f1b"),
    )
    assert [(row["planner"], row["schedule"]) for row in rows][:3] == [
        ("data-parallel", "auto"),
        ("equal", "auto"),
        ("chain", "auto"),
    ]
    assert [row["schedule"] for row in rows[3:]] == ["gpipe", "1f1b"]
    assert all(row["step_s"] is None or row["step_s"] > 0 for row in rows)


def test_search_from_the_command_line(tmp_path: Path) -> None:
    """A graph file goes in, a plan file and one JSON object come out."""
    write_noun(mlp(4, 256), tmp_path / "graph.json")
    out = tmp_path / "plan.json"
    words = ["search", str(tmp_path / "graph.json"), "--gpus", "2", "--batch", "16", "--json"]
    done = CliRunner().invoke(command_line, [*words, "--planner", "chain", "-o", str(out)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    plan = read_noun(out, Plan)
    assert said["step_s"] == plan.prediction.step_s
    assert 0 < said["mfu"] < 1
    assert said["expected"]["error"] > 0
    assert said["expected"]["chip"] == "A100"
    assert set(said) == {
        "plan",
        "step_s",
        "samples_per_s",
        "bubble",
        "bound_s",
        "gap",
        "search_s",
        "total_s",
        "expected",
        "mfu",
        "peak_bytes_by_device",
        "baselines",
        *(["undecided"] if said.get("undecided") else []),
    }
    assert all(said["baselines"][name] / said["step_s"] > 1 for name in said.get("undecided", ()))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["serach"], 2, "search"),
        (["search", "nowhere.json", "--gpus", "2"], 2, "No such file"),
        (["search", "GRAPH", "--gpsu", "2"], 2, "--gpus"),
        (["search", "GRAPH", "--cluster", "dgx-a10"], 2, "dgx-a100"),
        (["search", "GRAPH", "--planner", "grpah"], 2, "Did you mean 'graph'"),
        (["search", "GRAPH", "--batch", "7", "--micro-batch", "2"], 2, "cannot be split"),
        (["search", "GRAPH", "--pin", "nothing"], 2, "--pin module.path=device"),
        (["search", "GRAPH", "--memory", "lots"], 2, "is not a size"),
        (["search", "GRAPH", "--memory", "1KB", "--gpus", "2"], 1, ""),
        (["search", "GRAPH", "--memory", "1B", "--gpus", "2"], 1, "of usable memory"),
        (["clusters", "dgx-a100", "--gpus", "999999999"], 2, "at most --gpus 65536"),
        (["search", "GRAPH", "--set", "a=1"], 2, "is a captured graph"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_remedy(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a traceback."""
    write_noun(mlp(2, 64), tmp_path / "graph.json")
    given = [str(tmp_path / "graph.json") if word == "GRAPH" else word for word in words]
    given += ["-o", str(tmp_path / "p.json")] if "search" in words else []
    assert run_command(given) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    """`graphplan NAME --help` works."""
    done = CliRunner().invoke(command_line, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert re.search(r"Examples?: graphplan", done.output)


def test_a_sequential_pipeline_waits_where_a_graph_does_not() -> None:
    """Branches in one line take longer; what already is a chain stays as it is."""
    branches = search_plan(towers(), find_cluster("pcie-8"), EQUAL).prices
    assert len(branches.edges) < len(chain_stages(branches).edges)
    ready = [schedule_prices(p, schedule="1f1b") for p in (branches, chain_stages(branches))]
    assert ready[0].prediction.step_s < ready[1].prediction.step_s
    chain = search_plan(mlp(8, 1024), find_cluster("pcie-8", gpus=4), EQUAL).prices
    assert chain_stages(chain) == chain


def test_modules_that_are_kept_are_not_cut() -> None:
    """A pattern keeps each module that it matches whole; one that matches none is refused."""
    park = find_cluster("pcie-8")
    ops = [
        msgspec.structs.replace(each, module=f"layers.{i // 4}.part")
        for i, each in enumerate(mlp(8, 1024).ops)
    ]
    model = msgspec.structs.replace(mlp(8, 1024), ops=tuple(ops))

    def count_pieces(**options: Any) -> int:
        asked = dataclasses.replace(EQUAL, **options)
        stages = search_plan(model, park, asked).stages.stages
        return sum(len({model.op_by_name[op].module for op in stage.ops}) for stage in stages)

    assert count_pieces(keep=("layers.*",)) == 4 < count_pieces()
    with pytest.raises(InvalidOption, match="kept whole"):
        search_plan(model, park, dataclasses.replace(QUICK, keep=("blocks.*",)))


def test_pins_that_the_baselines_cannot_obey_do_not_stop_the_search() -> None:
    """Data parallelism has no plan with a pin; what the user asked for has."""
    pinned = [
        msgspec.structs.replace(each, module=each.name.partition("l")[0]) for each in towers().ops
    ]
    model = msgspec.structs.replace(towers(), ops=tuple(pinned))
    options = SearchOptions(batch_size=32, effort=0.25, pins={"t0": 0, "t1": 1})
    plan = search_plan(model, find_cluster("summit", gpus=2), options)
    assert "data-parallel" not in plan.baselines
    device_by_op = {op: stage.devices for stage in plan.stages.stages for op in stage.ops}
    assert {device_by_op[f"t{t}l{i}"] for t in range(2) for i in range(4)} == {(0,), (1,)}
    assert device_by_op["t0l0"] == (0,)


@pytest.mark.parametrize("schedule", ["1f1b", "kfkb"])
def test_a_schedule_of_one_stage_a_device_gets_stages_that_it_can_order(schedule: str) -> None:
    """The search put several stages on a device and then refused its own plan."""
    options = SearchOptions(batch_size=100, schedule=schedule, effort=0.25)
    plan = search_plan(towers(3, 3, 64), find_cluster("summit", gpus=3), options)
    devices = [device for stage in plan.stages.stages for device in stage.devices]
    assert len(set(devices)) == len(devices)
    assert plan.provenance.schedule == schedule


def detached() -> OpGraph:
    """A layer, a branch that reads its result without gradients, and a layer that reads both."""
    ops = [
        op("first", "linear(%0, @0)", ("x",), spec("b", 64), weights=("w0",)),
        op("teacher", "linear(%0, @0)", ("first",), spec("b", 64), weights=("f",), trained=False),
        op("last", "linear(%0, @0)", ("first",), spec("b", 64), weights=("w1",)),
        op("sum", "add(%0, %1)", ("teacher", "last"), spec("b", 64)),
    ]
    weights = {name: spec(64, 64) for name in ("w0", "f", "w1")}
    return graph(ops, inputs={"x": spec("b", 64)}, weights=weights, frozen=("f",))


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory"])
def test_a_stage_without_gradients_sends_none_back(objective: str) -> None:
    """The sender waited for a gradient that never came: the search called its order a deadlock."""
    cluster = find_cluster("summit", gpus=4)
    problem = pose_problem(detached(), cluster, SearchOptions(batch_size=8))
    parts = [
        Part(nodes=(node,), devices=(node,), micro_batch_size=2)
        for node in range(problem.num_nodes)
    ]
    stages = assemble_stages(problem, parts)
    trains = dict(enumerate(problem.needs_backward))
    assert all(not edge.needs_grad for edge in stages.edges if not trains[edge.dst])
    assert not all(trains.values())
    cost = CostModel(problem)
    assert 0 < judge_stages(cost, stages, objective=objective) < math.inf


def test_wide_weights_under_mixed_precision_make_a_legal_plan() -> None:
    """The states of complex weights were priced in four bytes, and the referee said so."""
    weights = {"w": spec(64, 64, dtype="complex64")}
    ops = [op("y", "linear(%0, @0)", ("x",), spec("b", 64), weights=("w",))]
    model = graph(ops, inputs={"x": spec("b", 64)}, weights=weights)
    options = SearchOptions(batch_size=8, precision="float16", mixed=True, effort=0.25)
    assert not check_plan(search_plan(model, find_cluster(None, gpus=1), options)).violations
