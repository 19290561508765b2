"""`graphplan doctor` finds what is there, and says where it is stuck."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from graphplan.cost.hardware import find_cluster
from graphplan.errors import GraphplanError
from graphplan.nouns.diagnosis import Diagnosis, Finding
from graphplan_runtime import doctor
from graphplan_runtime.doctor import Doctor, _watch_probes, write_cluster

SLEEP = "import time; time.sleep(60)"


def test_a_machine_with_two_processes_is_well(tmp_path: Path) -> None:
    """Every step has a finding, training equals one process, and the cluster can be planned for."""
    report, cluster = tmp_path / "diagnosis.json", tmp_path / "here.toml"
    command = [sys.executable, "-m", "graphplan", "doctor", "--device", "cpu", "--ranks", "2"]
    command += ["-o", str(report), "--cluster", str(cluster)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = msgspec.json.decode(report.read_bytes(), type=Diagnosis)
    about = [each.about for each in found.findings]
    assert about == ["devices", "kernels", "groups", "messages", "sums", "orders", "training"]
    assert [(pair.src, pair.dst) for pair in found.pairs] == [(0, 1), (1, 0)]
    assert found.training is not None
    assert found.training.num_stages == 2
    assert found.training.largest_loss_difference < 1e-5
    assert len(find_cluster(str(cluster)).devices) == 2
    assert str(tmp_path) not in json.dumps(msgspec.to_builtins(found)), "nothing of the user's"


def start(script: str) -> subprocess.Popen[bytes]:
    """A rank that does something else."""
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)


def test_a_rank_that_hangs_is_named_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks stay where they are: the limit of a step ends the wait."""
    monkeypatch.setattr(doctor, "STEP_LIMIT_S", 1.0)
    (tmp_path / "step-0").write_text("sums")
    (tmp_path / "step-1").write_text("messages")
    ranks = [start(SLEEP), start(SLEEP)]
    try:
        with pytest.raises(GraphplanError, match="rank 0 at sums, rank 1 at messages"):
            _watch_probes(ranks, tmp_path)
    finally:
        for each in ranks:
            each.kill()
            each.wait()


def test_a_rank_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    """What it wrote last is the reason that is told."""
    (tmp_path / "step-0").write_text("groups")
    (tmp_path / "log-0").write_text("something\nncclSystemError: no such link\n")
    rank = start("import sys; sys.exit(3)")
    while rank.poll() is None:
        time.sleep(0.01)
    with pytest.raises(GraphplanError, match=r"rank 0 ended while .*: ncclSystemError") as caught:
        _watch_probes([rank, start("")], tmp_path)
    assert "NCCL_DEBUG=INFO" in caught.value.remedy


def test_what_fails_is_a_finding_and_the_rest_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that cannot be measured do not keep the training from being tried."""
    heard: list[Finding] = []
    examined = Doctor(kind="cpu", num_ranks=2, tell=heard.append)

    def fail(*_: object) -> Diagnosis:
        raise OSError("no such device")

    for step in ("_time_kernels", "_probe_links", "_train"):
        monkeypatch.setattr(examined, step, fail)
    found = examined.examine()
    assert [(each.about, each.verdict) for each in heard] == [
        ("devices", "fine"),
        ("kernels", "failed"),
        ("links", "failed"),
        ("training", "failed"),
    ]
    assert not found.is_well


def test_a_way_that_all_share_is_described_as_shared() -> None:
    """Four devices that reach a quarter when all send have one port for their node."""
    pairs = tuple(
        {"src": a, "dst": b, "latency_s": 1e-5, "bandwidth_bytes_per_s": 2e10}
        for a in range(4)
        for b in range(4)
        if a != b
    )
    facts = {"machine": {}, "device": "cuda", "devices": ["x"], "pairs": pairs}
    for crowded, scope in ((5e9, "node"), (1.9e10, "device")):
        found = msgspec.convert(facts | {"crowded_bytes_per_s": crowded}, Diagnosis)
        assert f'scope = "{scope}" }}' in write_cluster(found, "l40s", 4)
