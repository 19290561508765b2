"""Workload files: what is read, what is refused, and the problems that they pose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidFile, InvalidOption
from graphplan.nouns.training import Training
from tests.pure.problems import make_cluster
from tools.workloads.profiled import build_graph, build_table, guess_batch_size, pose_profiled
from tools.workloads.workload import MaxLoadWorkload, ProfiledWorkload, pose_maxload, read_workload

WORKLOADS = Path(__file__).resolve().parents[2] / "tools" / "workloads"

MAXLOAD: dict[str, Any] = {
    "format": "graphplan/maxload-workload",
    "version": 1,
    "name": "three",
    "memory_bytes": 10.0,
    "ops": [
        {"name": "c", "seconds": 3.0, "bytes": 3.0},
        {"name": "a", "seconds": 1.0, "bytes": 0.5},
        {"name": "b", "seconds": 2.0, "bytes": 2.0},
    ],
    "precedence": [["a", "b"], ["b", "c"]],
    "tensors": [{"owner": "a", "readers": ["b", "c"], "seconds": 0.25}],
    "optimum_s_by_devices": {"2": 3.5},
}

PROFILED: dict[str, Any] = {
    "format": "graphplan/profiled-workload",
    "version": 1,
    "name": "two",
    "ops": [
        {
            "name": "fc",
            "op": "Linear(in_features=4, out_features=10, bias=True)",
            "forward_s": 0.8,
            "backward_s": 1.6,
            "output_bytes": 320,
            "param_bytes": 400,
        },
        {
            "name": "in",
            "op": "Input",
            "forward_s": 0.0,
            "backward_s": 0.0,
            "output_bytes": 128,
            "param_bytes": 0,
        },
        {
            "name": "act",
            "op": "ReLU()",
            "forward_s": 0.4,
            "backward_s": 0.2,
            "output_bytes": 320,
            "param_bytes": 0,
        },
    ],
    "edges": [
        {"src": "in", "dst": "fc", "bytes": 128},
        {"src": "fc", "dst": "act", "bytes": 320},
    ],
}


def read_json(tmp_path: Path, content: object) -> MaxLoadWorkload | ProfiledWorkload:
    """Write the content to a file and read it as a workload."""
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(content))
    return read_workload(path)


def change(base: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A copy with some fields replaced."""
    copied: dict[str, Any] = json.loads(json.dumps(base))
    return copied | changes


def test_a_maxload_file_becomes_ops_in_topological_order(tmp_path: Path) -> None:
    """Names are sorted along the edges, bytes are rounded up, tensors go by number."""
    workload = read_json(tmp_path, MAXLOAD)
    assert isinstance(workload, MaxLoadWorkload)
    problem = pose_maxload(workload, 2)
    assert [op.name for op in problem.ops] == ["a", "b", "c"]
    assert [op.bytes for op in problem.ops] == [1, 2, 3]
    assert problem.edges == ((0, 1), (1, 2))
    assert (problem.tensors[0].owner, problem.tensors[0].readers) == (0, (1, 2))
    assert (problem.num_parts, problem.memory_bytes) == (2, 10)
    with pytest.raises(InvalidOption, match="0 devices are too few"):
        pose_maxload(workload, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops": []}, "there are no ops"),
        ({"ops": MAXLOAD["ops"] + MAXLOAD["ops"][:1]}, "2 ops are called 'c'"),
        ({"ops": [{"name": "a", "seconds": -1.0}]}, "'a' has the value -1.0"),
        ({"precedence": [["a", "z"]]}, "names the op 'z', which does not exist"),
        ({"precedence": [["a", "b"], ["b", "a"]]}, "in a circle: (a -> b -> a|b -> a -> b)"),
        ({"tensors": [{"owner": "a", "readers": ["q"], "seconds": 1.0}]}, "the op 'q'"),
        ({"memory_bytes": -5.0}, "'memory_bytes' has the value -5.0"),
        ({"surprise": 1}, "unknown field `surprise`"),
        ({"version": 2}, "version 2"),
        ({"name": 7}, "Expected `str`"),
        ({"format": "graphplan/plan"}, "is a 'graphplan/plan' file, not a workload"),
    ],
)
def test_a_wrong_maxload_file_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    """The error names what is wrong."""
    with pytest.raises(InvalidFile, match=message):
        read_json(tmp_path, change(MAXLOAD, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": [{"src": "in", "dst": "no", "bytes": 1}]}, "names the op 'no'"),
        ({"edges": [{"src": "in", "dst": "in", "bytes": 1}]}, "in a circle: in -> in"),
        ({"ops": [dict(PROFILED["ops"][0], forward_s=-1.0)]}, "'fc' has the value -1.0"),
        ({"ops": [dict(PROFILED["ops"][0], output_bytes=1.5)]}, "Expected `int`"),
    ],
)
def test_a_wrong_profiled_file_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    """The error names what is wrong."""
    with pytest.raises(InvalidFile, match=message):
        read_json(tmp_path, change(PROFILED, **changes))


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    """No file, no JSON, no object: each is an error of ours."""
    with pytest.raises(InvalidFile, match="Cannot read"):
        read_workload(tmp_path / "none.json")
    for text in ("", "[]", "{", '{"format": "graphplan/maxload-workload"}'):
        path = tmp_path / "broken.json"
        path.write_text(text)
        with pytest.raises(InvalidFile):
            read_workload(path)


def test_the_measured_batch_is_told_by_linear_layers(tmp_path: Path) -> None:
    """320 bytes of ten float32 features are eight rows; else a power of two that divides all."""
    workload = read_json(tmp_path, PROFILED)
    assert isinstance(workload, ProfiledWorkload)
    assert guess_batch_size(workload) == 8
    plain = change(PROFILED)
    plain["ops"][0]["op"] = "Conv2d(4, 10)"
    other = read_json(tmp_path, plain)
    assert isinstance(other, ProfiledWorkload)
    assert guess_batch_size(other) == 16


def test_a_profiled_file_becomes_a_problem(tmp_path: Path) -> None:
    """Times follow the samples, weights train, inputs are kept, nothing before weights trains."""
    workload = read_json(tmp_path, PROFILED)
    assert isinstance(workload, ProfiledWorkload)
    problem = pose_profiled(
        workload, make_cluster(2), Training(batch_size=16, optimizer="sgd"), speed_by_type={}
    )
    assert [node.name for node in problem.nodes] == ["in", "fc", "act"]
    assert problem.needs_backward.tolist() == [False, True, True]
    at = problem.size_index[8]
    assert problem.forward_s[0, at].tolist() == pytest.approx([0.0, 0.8, 0.4])
    assert problem.input_grad_s[0, at].tolist() == pytest.approx([0.0, 0.8, 0.2])
    assert problem.weight_grad_s[0, at].tolist() == pytest.approx([0.0, 0.8, 0.0])
    assert problem.forward_s[0, problem.size_index[4]].tolist() == pytest.approx([0.0, 0.4, 0.2])
    assert problem.trained_elements.tolist() == [0, 100, 0]
    memory = CostModel(problem).stage_memory([1, 2], 8)
    assert memory.saved == 128 + 320
    assert {flow.value: flow.needs_grad for flow in problem.flows} == {"in": False, "fc": True}


def test_small_batches_cost_at_least_a_launch(tmp_path: Path) -> None:
    """An op of 0.8 s at 8 samples takes 0.1 s for one, but never less than the device's launch."""
    workload = read_json(tmp_path, PROFILED)
    assert isinstance(workload, ProfiledWorkload)
    graph = build_graph(workload, measured_batch_size=8)
    slow = make_cluster(1).types[0]
    for launch_s, expected in ((0.0, 0.1), (0.3, 0.3), (5.0, 0.8)):
        kind = type(slow)(
            name="gpu",
            memory_bytes=1,
            bandwidth_bytes_per_s=1.0,
            flops_per_s_by_dtype={"float32": 1.0},
            launch_s=launch_s,
        )
        table = build_table(workload, graph, kind, measured_batch_size=8)
        assert table.row_by_op["fc"].forward_s == pytest.approx((expected, 0.8))
    faster = build_table(workload, graph, slow, measured_batch_size=8, speed=2.0)
    assert faster.row_by_op["fc"].forward_s == pytest.approx((0.05, 0.4))
    with pytest.raises(InvalidOption, match="speed of 0"):
        build_table(workload, graph, slow, measured_batch_size=8, speed=0.0)


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.json")), ids=lambda path: path.stem)
def test_every_published_file_is_read(path: Path) -> None:
    """All files of the folder pose a problem of their size."""
    workload = read_workload(path)
    if isinstance(workload, MaxLoadWorkload):
        problem = pose_maxload(workload, 4)
        assert problem.num_ops == len(workload.ops)
        assert problem.seconds == pytest.approx(sum(op.seconds for op in workload.ops))
    else:
        posed = pose_profiled(
            workload, make_cluster(4), Training(batch_size=8), micro_batch_sizes=[8]
        )
        assert posed.num_nodes == len(workload.ops)
        assert len(posed.edges) == len(workload.edges)
