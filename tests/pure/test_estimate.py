"""Estimates: floors, rates, calibration, hosts, and that they scale to large graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from graphplan.cli.main import run_command
from graphplan.cost.calibrate import calibrate_device
from graphplan.cost.estimate import Estimator, estimate_table
from graphplan.cost.flops import WorkCounter
from graphplan.cost.hardware import find_device_type, list_device_types
from graphplan.cost.laws.price import find_rate
from graphplan.errors import InvalidOption, UnknownName
from graphplan.files import read_noun, write_noun
from graphplan.nouns.cluster import DeviceType, Law
from graphplan.nouns.table import ProfileTable
from tests.pure.opgraphs import mlp

ROUND = DeviceType(
    name="round",
    memory_bytes=1 << 30,
    bandwidth_bytes_per_s=1e11,
    flops_per_s_by_dtype={"float32": 1e12, "bfloat16": 4e12},
    laws={"gemm": Law(figures={"efficiency": 0.5}), "stream": Law(figures={"memory": 0.5})},
    launch_s=1e-6,
)


def test_large_products_are_bound_by_arithmetic() -> None:
    """FLOPs over peak times efficiency, doubled by doubling the batch."""
    table = estimate_table(mlp(1, 2048), ROUND, batch_sizes=[4096, 8192])
    row = table.row_by_op["l0"]
    products = [2 * b * 2048**2 / 0.5e12 for b in (4096, 8192)]
    assert row.forward_s == pytest.approx(products, rel=1e-3)
    added = 3 * 4 * 2048**2 / 0.5e11
    assert row.weight_grad_s == pytest.approx([each + added for each in products], rel=1e-3)
    assert row.input_grad_s == (0, 0)


def test_small_ops_are_bound_by_bytes_and_by_the_launch() -> None:
    """Elementwise ops take bytes over bandwidth, and a launch."""
    table = estimate_table(mlp(1, 1000), ROUND, batch_sizes=[1, 500])
    assert table.row_by_op["r0"].forward_s == pytest.approx(
        [1e-6 + 8e3 / 0.5e11, 1e-6 + 4e6 / 0.5e11]
    )


def test_ops_without_backward_get_none() -> None:
    """Frozen layers at the front cost their forward only."""
    table = estimate_table(mlp(3, 64, frozen=("w0",)), ROUND, batch_sizes=[8])
    assert table.row_by_op["l0"].weight_grad_s == (0.0,)
    assert table.row_by_op["r0"].input_grad_s == (0.0,)
    assert table.row_by_op["l1"].weight_grad_s[0] > 0
    assert table.row_by_op["l1"].input_grad_s == (0.0,)
    assert table.row_by_op["l2"].input_grad_s[0] > 0


def test_precision_uses_its_own_rate() -> None:
    """bfloat16 products run at the bfloat16 rate; a device without it falls back to float32."""
    graph = mlp(1, 4096)
    full = estimate_table(graph, ROUND, batch_sizes=[4096]).row_by_op["l0"]
    half = estimate_table(graph, ROUND, batch_sizes=[4096], precision="bfloat16").row_by_op["l0"]
    assert half.forward_s[0] == pytest.approx(full.forward_s[0] / 4, rel=1e-3)
    assert find_rate(find_device_type("v100-16gb"), "bfloat16") == 15.7e12
    a100 = find_device_type("a100-80gb")
    tf32 = estimate_table(graph, a100, batch_sizes=[4096], precision="tf32").row_by_op["l0"]
    plain = estimate_table(graph, a100, batch_sizes=[4096]).row_by_op["l0"]
    assert plain.forward_s[0] > 4 * tf32.forward_s[0]
    with pytest.raises(UnknownName, match="Did you mean 'float16'"):
        estimate_table(graph, ROUND, batch_sizes=[1], precision="fp16")


def test_scales_are_looked_up_from_special_to_general() -> None:
    """An op's own pass comes first, then the op, its kind's pass, its kind."""
    graph = mlp(2, 512)
    op, counter = graph.op_by_name["l1"], WorkCounter(graph)
    work = counter.count_op(op, 64)
    plain = Estimator(ROUND).pass_time(op, work, "forward")
    scales = {"matmul": 2.0, "matmul.forward": 3.0, "linear": 4.0, "linear.forward": 5.0}
    while scales:
        kind = msgspec.structs.replace(ROUND, scale_by_kind=scales)
        expected = plain * max(scales.values())
        assert Estimator(kind).pass_time(op, work, "forward") == pytest.approx(expected)
        scales = dict(list(scales.items())[:-1])


def test_small_micro_batches_wait_for_the_host() -> None:
    """Eager steps take what the host issues, until the device takes longer."""
    eager = msgspec.structs.replace(ROUND, host_s=1e-4)
    graph = mlp(4, 256)
    plain, slow = (estimate_table(graph, kind, batch_sizes=[1, 65536]) for kind in (ROUND, eager))
    totals = [[sum(row.forward_s[j] for row in t.rows) for j in (0, 1)] for t in (plain, slow)]
    assert totals[1][0] == pytest.approx(8 * 1e-4)
    assert totals[1][1] == totals[0][1]


def test_compilers_take_tensors_out_of_chains() -> None:
    """A fused chain moves less than its ops, never less than nothing."""
    fused = msgspec.structs.replace(ROUND, fuses=True)
    graph = mlp(2, 1024)
    plain, joined = (estimate_table(graph, kind, batch_sizes=[512]) for kind in (ROUND, fused))
    for row, other in zip(plain.rows, joined.rows, strict=True):
        assert 0 <= other.forward_s[0] <= row.forward_s[0]


@pytest.mark.parametrize("name", list_device_types())
def test_every_device_type_estimates_growing_times(name: str) -> None:
    """More samples never take less time on the device, and there is a row for every op."""
    graph = mlp(2, 512)
    kind = msgspec.structs.replace(find_device_type(name), host_s=0.0, residual=None)
    table = estimate_table(graph, kind, batch_sizes=[1, 64, 4096])
    assert [row.op for row in table.rows] == [op.name for op in graph.ops]
    for row in table.rows:
        assert row.forward_s == tuple(sorted(row.forward_s))
        assert row.forward_s[0] > 0


def test_equal_ops_share_one_computation() -> None:
    """Six thousand ops of one shape are estimated without counting each."""
    graph = mlp(3000, 64)
    rows = estimate_table(graph, ROUND, batch_sizes=[1, 2, 4, 8]).rows
    assert len(rows) == 6000
    assert len({id(row.forward_s) for row in rows}) <= 4


def test_calibration_reproduces_what_was_measured() -> None:
    """A device twice as slow in one pass and five times as fast in another is found again."""
    graph, other = mlp(2, 1024), mlp(3, 2048)
    scales = {"linear.forward": 4.0, "relu.input_grad": 20.0, "matmul": 1.1}
    truth = msgspec.structs.replace(ROUND, scale_by_kind=scales)
    measured = estimate_table(graph, truth, batch_sizes=[1, 512, 4096])
    found = calibrate_device(ROUND, graph, measured)
    again = estimate_table(other, found, batch_sizes=[4096])
    for row, right in zip(
        again.rows, estimate_table(other, truth, batch_sizes=[4096]).rows, strict=True
    ):
        assert row.forward_s == pytest.approx(right.forward_s, rel=0.05)
        assert row.input_grad_s == pytest.approx(right.input_grad_s, rel=0.05)
        assert row.weight_grad_s == pytest.approx(right.weight_grad_s, rel=0.05)


def test_calibration_may_exceed_the_peaks_of_the_file() -> None:
    """A device faster than its file says is scaled, too."""
    truth = msgspec.structs.replace(
        ROUND, bandwidth_bytes_per_s=1e12, flops_per_s_by_dtype={"float32": 1e13}
    )
    measured = estimate_table(mlp(2, 1024), truth, batch_sizes=[4096])
    found = calibrate_device(ROUND, mlp(2, 1024), measured)
    again = estimate_table(mlp(2, 1024), found, batch_sizes=[4096])
    assert sum(row.forward_s[0] for row in again.rows) == pytest.approx(
        sum(row.forward_s[0] for row in measured.rows), rel=0.01
    )


def test_a_table_of_another_graph_is_refused() -> None:
    """Calibration needs the graph that was measured."""
    measured = estimate_table(mlp(2, 8), ROUND, batch_sizes=[4])
    with pytest.raises(InvalidOption, match="table is for graph"):
        calibrate_device(ROUND, mlp(3, 8), measured)


def test_the_command_estimates_a_graph_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`profile graph.json --estimate GPU` writes a table and needs no torch."""
    graph, table = tmp_path / "graph.json", tmp_path / "table.json"
    write_noun(mlp(2, 64), graph)
    arguments = ["profile", str(graph), "--estimate", "h100", "-o", str(table)]
    assert run_command([*arguments, "--batch-sizes", "1,8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["device"], facts["batch_sizes"], facts["ops"]) == ("h100", [1, 8], 4)
    assert read_noun(table, ProfileTable).batch_sizes == (1, 8)
    assert run_command([*arguments, "--batch-sizes", "0"]) == 2
    assert run_command([*arguments, "--device", "cpu"]) == 2
    assert run_command(["profile", str(graph), "--estimate", "h10", "-o", str(table)]) == 2
    assert "Did you mean 'h100'" in capsys.readouterr().err
    code = f"import sys; from graphplan.cli.main import run_command as r; r({arguments!r});"
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_calibration_tells_overhead_from_efficiency() -> None:
    """Ops of several sizes with a fixed cost each give back both figures."""
    truth = msgspec.structs.replace(
        ROUND,
        scale_by_kind={"linear.forward": 0.8},
        overhead_s_by_kind={"linear.forward": 1e-3},
    )
    graph = mlp(2, 512)
    measured = estimate_table(graph, truth, batch_sizes=[64, 1024, 16384])
    found = calibrate_device(ROUND, graph, measured)
    assert found.overhead_s_by_kind["linear.forward"] == pytest.approx(1e-3, rel=0.02)
    for width in (256, 2048):
        again, right = (
            estimate_table(mlp(1, width), kind, batch_sizes=[4096]).row_by_op["l0"].forward_s
            for kind in (found, truth)
        )
        assert again == pytest.approx(right, rel=0.05)


def test_figures_that_give_no_times_are_refused() -> None:
    """A cluster file may say anything of kinds of ops; what comes of it is looked at."""
    kind = msgspec.structs.replace(ROUND, overhead_s_by_kind={"linear": 2e12})
    with pytest.raises(InvalidOption, match="'round' give no times"):
        estimate_table(mlp(2, 64), kind, batch_sizes=[1])
