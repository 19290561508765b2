"""Exports say a plan in other runtimes' words, or refuse with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from graphplan.cli.main import run_command
from graphplan.cost.hardware import find_cluster
from graphplan.errors import InvalidOption
from graphplan.export.deepspeed import export_deepspeed
from graphplan.export.flat import export_flat
from graphplan.export.megatron import export_megatron
from graphplan.export.torch import is_chain, linearise, plan_schedule, refuse_plan
from graphplan.files import write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv
from tests.pure.opgraphs import mlp
from tests.pure.test_planner import towers


def layered(num_layers: int, width: int = 4096) -> OpGraph:
    """An MLP whose layers sit in a module list."""
    plain = mlp(num_layers, width)
    ops = tuple(
        msgspec.structs.replace(op, module=f"model.layers.{op.name[1:]}.part") for op in plain.ops
    )
    return msgspec.structs.replace(plain, ops=ops)


def make_plan(graph: OpGraph, gpus: int, planner: str = "equal") -> Plan:
    """A plan with equal stages, one device each."""
    options = SearchOptions(
        batch_size=8, micro_batch_sizes=(1,), planner=planner, schedule="1f1b", baselines=False
    )
    return search_plan(graph, find_cluster("summit", gpus=gpus), options)


def test_a_chain_of_layers_becomes_a_megatron_layout() -> None:
    """Two stages of four layers each."""
    graph = layered(8)
    said = export_megatron(make_plan(graph, 2), graph)
    assert said["pipeline_model_parallel_layout"] == "Etttt|ttttL"
    assert said["pipeline_model_parallel_size"] == 2
    assert said["num_layers"] == 8


def test_a_chain_of_layers_becomes_deepspeed_parts() -> None:
    """Boundaries and the stage of every layer."""
    graph = layered(8)
    said = export_deepspeed(make_plan(graph, 2), graph)
    assert said["parts"] == [0, 4, 8]
    assert said["stage_by_layer"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert said["layers"] == "model.layers"
    assert said["config"]["gradient_accumulation_steps"] == 8


def test_what_is_not_a_chain_of_layers_is_refused() -> None:
    """A graph of stages, and a model without repeated layers."""
    with pytest.raises(InvalidOption, match="the stages form a graph"):
        export_megatron(graph_plan(), towers())
    with pytest.raises(InvalidOption, match="no list of repeated layers"):
        export_megatron(make_plan(mlp(8, 4096), 2), mlp(8, 4096))


def graph_plan() -> Plan:
    """Two towers side by side."""
    plan = make_plan(towers(length=2, width=4096), 4, planner="graphpipe")
    assert not is_chain(plan)
    return plan


def test_the_flat_form_names_both_ends_of_every_tensor() -> None:
    """Every input of a stage is an output of another one."""
    flat = export_flat(graph_plan())
    outputs = {(s["index"], o["value"]) for s in flat["stages"] for o in s["outputs"]}
    inputs = {(i["from"], i["value"]) for s in flat["stages"] for i in s["inputs"]}
    assert inputs == outputs != set()
    assert json.loads(json.dumps(flat)) == flat


def test_a_chain_keeps_its_order_in_torchs_file() -> None:
    """The CSV holds the plan's own tasks."""
    plan = make_plan(layered(8), 2)
    rows = format_torch_csv(plan.prices, plan_schedule(plan)).splitlines()
    assert rows[1] == ",".join(f"1{kind}{m}" for m in range(8) for kind in "FB")


def test_a_graph_is_linearised_with_its_bytes() -> None:
    """Every neighbour pair is an edge, and torch's file can be written."""
    plan = graph_plan()
    chain = linearise(plan.prices)
    assert chain.edges == tuple((s, s + 1) for s in range(len(chain.stages) - 1))
    assert len(format_torch_csv(chain, build_1f1b(chain)).splitlines()) == 4


def test_replicas_are_refused_for_torch() -> None:
    """torch's runtime has no words for them."""
    plan = search_plan(
        mlp(4, 1024),
        find_cluster("summit", gpus=2),
        SearchOptions(batch_size=8192, planner="data-parallel", baselines=False),
    )
    with pytest.raises(InvalidOption, match="replicas of single stages"):
        refuse_plan(plan)


def test_the_command_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """dot and json need no model; an unknown target gets a suggestion."""
    write_noun(graph_plan(), tmp_path / "plan.json")
    path = str(tmp_path / "plan.json")
    assert run_command(["export", path, "--to", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert run_command(["export", path, "--to", "json", "-o", str(tmp_path / "flat.json")]) == 0
    assert json.loads((tmp_path / "flat.json").read_text())["format"] == "graphplan/flat"
    assert run_command(["export", path, "--to", "tourch"]) == 2
    assert "Did you mean 'torch'" in capsys.readouterr().err
    assert run_command(["export", path, "--to", "megatron"]) == 2
    assert "--model" in capsys.readouterr().err
