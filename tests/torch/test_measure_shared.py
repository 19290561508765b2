"""Measuring beside neighbours, and the step of the user's own optimizer."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from graphplan.cli.main import run_command
from graphplan.cost import measure_neighbours, measure_session
from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.cache import Measurement, ProfileCache
from graphplan.cost.hardware import find_cluster
from graphplan.cost.measure import measure_table, open_cache
from graphplan.cost.measure_clock import CpuClock
from graphplan.cost.measure_neighbours import check_ranks, count_ranks, run_neighbours
from graphplan.cost.measure_unit import Effort, summarise
from graphplan.cost.measure_update import measure_update, name_update
from graphplan.errors import InvalidOption
from graphplan.files import read_noun
from graphplan.frontend import Captured, trace_module
from graphplan.nouns.cluster import Link, Node
from graphplan.nouns.table import Host, ProfileTable
from graphplan_runtime import hostprofile
from graphplan_runtime.hostprofile import Figures, measure_host, summarise_host

QUICK = Effort(warm_up=1, min_repeats=2, budget_s=0.001, patience=1.0)
HOST = Host(
    num_ranks=2,
    bandwidth_bytes_per_s=1e9,
    task_s=1e-4,
    link=Link(bandwidth_bytes_per_s=1e9, latency_s=1e-5, host_s=1e-5),
)
make_adam = functools.partial(torch.optim.Adam, lr=0.1)


@pytest.fixture
def captured() -> Captured:
    """Two layers."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    return trace_module(model, lambda size: (torch.zeros(size, 8),))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two ranks, wherever the test runs."""
    monkeypatch.setattr(measure_neighbours, "count_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def test_neighbours_are_at_work_in_the_block_only(captured: Captured, two_cores: None) -> None:
    """They burn processor time inside, and are gone after it."""
    with run_neighbours(captured.graph, 2, 2) as neighbours:
        before = [read_cpu_ticks(process.pid) for process in neighbours]
        assert len(before) == 2
        deadline = time.monotonic() + 60
        while any(
            read_cpu_ticks(process.pid) <= ticks
            for process, ticks in zip(neighbours, before, strict=True)
        ):
            assert time.monotonic() < deadline, "a neighbour does nothing"
            time.sleep(0.01)
    assert all(process.returncode is not None for process in neighbours)


def read_cpu_ticks(pid: int) -> int:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_table_tells_that_there_were_neighbours(
    captured: Captured, two_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its provenance; rounds are averaged, and what was measured alone is not taken for it."""
    times = iter(range(1, 100))

    def measured(*_: object) -> Measurement:
        return Measurement(forward_s=float(next(times)))

    monkeypatch.setattr(measure_session, "measure_unit", measured)
    measure = functools.partial(
        measure_table, captured, device="cpu", batch_sizes=[2], calibrate_sizes=(), rounds=2
    )
    beside = measure(ranks_per_host=2)
    assert "beside 1 ranks on the same host" in beside.provenance
    assert sorted(row.forward_s[0] for row in beside.rows) == [(1 + 3) / 2, (2 + 4) / 2]
    alone = measure()
    assert "beside" not in alone.provenance
    assert sorted(row.forward_s[0] for row in alone.rows) == [5, 6], "the faster of two rounds"
    monkeypatch.setenv("GRAPHPLAN_CACHE_DIR", str(tmp_path))
    assert open_cache("cpu").path != open_cache("cpu", ranks_per_host=2).path


def test_neighbours_are_not_trimmed_away() -> None:
    """Alone the fast side counts, beside others the middle."""
    samples = [1.0] * 40 + [3.0] * 60
    assert summarise(samples, QUICK.counted)[0] == 1.0
    assert summarise(samples, QUICK.beside_others().counted)[0] == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("num_ranks", "device", "message"),
    [
        (0, "cpu", "0 ranks are too few"),
        (3, "cpu", "3 ranks of 1 threads need more than the 2 cores"),
        (2, "cuda", "do not share a cuda device"),
    ],
)
def test_ranks_that_cannot_be(two_cores: None, num_ranks: int, device: str, message: str) -> None:
    """More ranks than cores would wait for each other, which the clock of a thread hides."""
    with pytest.raises(InvalidOption, match=message):
        check_ranks(num_ranks, device)


def test_as_many_ranks_as_cores(two_cores: None) -> None:
    """By default the ranks of a run fill the host; accelerators are not shared."""
    assert count_ranks("cpu") == 2
    assert count_ranks("cuda") == 1


def test_the_own_optimizer_is_timed(captured: Captured) -> None:
    """Its step on weights of the model's sizes, by element; known by its kind and settings."""
    elements = 8 * 16 + 16 + 16 * 4 + 4
    seen: list[int] = []

    class Slow(torch.optim.SGD):
        """Takes one second of the clock below for a step."""

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(sum(p.numel() for group in self.param_groups for p in group["params"]))
            clock.now_s += 1.0

    class Clock(CpuClock):
        """Stands still."""

        now_s = 0.0

        def mark(self) -> float:
            return self.now_s

    clock = Clock()
    effort = Effort(max_repeats=3)
    seconds, _ = measure_update(captured.graph, lambda p: Slow(p, lr=0.1), clock, effort)
    assert seconds == pytest.approx(1 / elements)
    assert set(seen) == {elements}
    names = {
        name_update(captured.graph, make)
        for make in (make_adam, functools.partial(make_adam, fused=True), torch.optim.SGD)
    }
    assert len(names) == 3
    table = measure_table(
        captured,
        device="cpu",
        batch_sizes=[2],
        calibrate_sizes=(),
        effort=QUICK,
        optimizer=make_adam,
    )
    assert table.update_s_per_element is not None
    assert 0 < table.update_s_per_element < 1e-3


def test_the_host_is_measured_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    two_cores: None,
) -> None:
    """`profile` writes what the host gives into the table, from the cache the second time."""
    monkeypatch.setenv("GRAPHPLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measure_session, "measure_step", lambda *_, **__: (0.1, 0.0))
    asked: list[int] = []

    def measure(num_ranks: int) -> Host:
        asked.append(num_ranks)
        return HOST

    monkeypatch.setattr(hostprofile, "measure_host", measure)
    model, path = tmp_path / "model.py", tmp_path / "table.json"
    model.write_text(
        "import torch\n"
        "def build():\n    return torch.nn.Linear(8, 8)\n"
        "def inputs(batch_size):\n    return (torch.rand(batch_size, 8),)\n"
    )
    arguments = ["profile", str(model), "--device", "cpu", "--batch-sizes", "2", "-o", str(path)]
    for _ in range(2):
        assert run_command([*arguments, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
    assert asked == [2]
    assert facts["host"]["num_ranks"] == 2
    assert read_noun(path, ProfileTable).host == HOST
    assert run_command(arguments) == 0
    assert "2 ranks on the host: memory 1.0 GB/s each, 100 us a task" in capsys.readouterr().out
    assert run_command(["profile", str(model), "--estimate", "h100", "--ranks-per-host", "2"]) == 2


def test_the_link_is_what_both_ends_do_not_spend() -> None:
    """One way less the processor time of both ends, which their tasks pay."""
    sent, heard = {4: [0.0], 1 << 20: [0.0]}, {4: [0.4], 1 << 20: [2.0]}
    sums, waited = {1 << 16: [0.3], 1 << 24: [4.0]}, {1 << 16: [0.2], 1 << 24: [9.0]}
    figures = [
        Figures(1e-4, 1e9, {4: 0.1, 1 << 20: 0.6}, sent, heard, sums),
        Figures(3e-4, 3e9, {4: 0.1, 1 << 20: 0.6}, sent, heard, waited),
    ]
    host = summarise_host(figures)
    length = (1 << 20) - 4
    assert host.task_s == pytest.approx(2e-4)
    assert host.bandwidth_bytes_per_s == 2e9
    assert host.link.host_time(4) == pytest.approx(0.1, rel=1e-4)
    assert host.link.host_s_per_byte == pytest.approx(0.5 / length)
    assert host.link.latency_s == pytest.approx(0.4 - 2 * 0.1)
    assert 1 / host.link.bandwidth_bytes_per_s == pytest.approx((1.6 - 2 * 0.5) / length)
    for num_bytes, seconds in ((1 << 16, 0.2), (1 << 24, 4.0)):  # Without waiting for the other.
        node = Node(devices=("cpu", "cpu"), link=host.link)
        cluster = msgspec.structs.replace(find_cluster("cpu", gpus=2), nodes=(node,))
        assert allreduce_time(cluster, (0, 1), num_bytes) == pytest.approx(seconds)


def test_two_ranks_measure_their_host() -> None:
    """Real processes: figures that can be, whatever the machine."""
    host = measure_host(2)
    assert host.num_ranks == 2
    assert 1e8 < host.bandwidth_bytes_per_s < 1e12
    assert 1e-6 < host.task_s < 0.1
    assert 1e-6 < host.link.host_s + host.link.latency_s < 1.0
    assert host.link.bandwidth_bytes_per_s > 1e6
    assert host.link.reduce_s is not None
    assert 1e-12 < host.link.reduce_s_per_byte < 1e-6


def test_a_cache_without_a_host(tmp_path: Path) -> None:
    """A file that cannot be read counts as none."""
    cache = ProfileCache("here", folder=tmp_path)
    assert cache.find_host() is None
    cache.save_host(HOST)
    assert cache.find_host() == HOST
    cache._host_path.write_bytes(b"{")
    assert cache.find_host() is None
