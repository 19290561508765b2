"""Stages run where they are put, whatever device the capture was made on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphplan.frontend import cut_graph, trace_module

ROOT = Path(__file__).resolve().parents[2]


class Positions(torch.nn.Module):
    """Makes tensors of its own: of a table of positions, and of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        mask = torch.ones(x.shape[1], dtype=torch.bool).to("cpu")
        placed: torch.Tensor = (x + self.table(places)) * mask.unsqueeze(1)
        return placed.pow(2).mean()


def test_ops_that_make_tensors_make_them_on_the_device_of_the_stage() -> None:
    """Every device that a captured op names is the stage's; on the CPU nothing changes."""
    captured = trace_module(Positions(), lambda b: (torch.randn(b, 5, 4),))
    stage_by_op = dict.fromkeys(captured.graph.op_by_name, 0)

    def list_devices(device: torch.device) -> set[torch.device]:
        stage = cut_graph(captured, stage_by_op, device=device)[0]
        given = [(*node.args, *node.kwargs.values()) for node in stage.graph.nodes]
        return {each for args in given for each in args if isinstance(each, torch.device)}

    assert list_devices(torch.device("cpu")) == {torch.device("cpu")}
    assert list_devices(torch.device("cuda", 1)) == {torch.device("cuda", 1)}


@pytest.mark.parametrize("name", ["T5", "DLRM", "LSTM seq2seq"])
def test_stages_run_on_a_device_that_refuses_tensors_of_another(name: str) -> None:
    """All ops there, forward and backward, with the numbers of the CPU; tools/check_devices.py does
    so for all models. In a process of its own, which then has an accelerator.
    """
    if name == "T5":
        pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "tools" / "check_devices.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    num_ops, difference = done.stdout.split(name)[1].split(" ops on the device, differs by ")
    assert int(num_ops) > 100
    assert float(difference) < 1e-5
