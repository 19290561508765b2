"""Model files: what is accepted, how settings travel, and what wrong files are told."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.cli.options import ended_at_once
from graphplan.errors import CaptureError, ModelFileError
from graphplan.frontend import load_model_file, trace_model_file, trace_module
from tests.torch.comparing import call_model

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
import torch

def build(width=4, layers=1):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

def tied():
    model = build(layers=2)
    model[1].weight = model[0].weight
    return model

def inputs(batch_size, width=4):
    return (torch.randn(batch_size, width),)

def loss(output, batch):
    return (output - batch[0]).pow(2).mean()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def data():
    yield inputs(2)
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Writes a model file and returns its path."""

    def make(text: str, name: str = "model.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return make


def test_a_model_file_is_captured_with_its_loss(write) -> None:  # type: ignore[no-untyped-def]
    """Its weights are meta tensors: nothing was allocated."""
    captured = trace_model_file(load_model_file(write(GOOD)))
    assert captured.graph.name == "model"
    assert captured.graph.loss == captured.graph.outputs[0]
    assert all(tensor.is_meta for tensor in captured.weights().values())


def test_settings_reach_every_function_that_has_them(write) -> None:  # type: ignore[no-untyped-def]
    """`width` changes the model and its inputs, `layers` the model only."""
    file = load_model_file(write(GOOD), settings={"width": 8, "layers": 3})
    graph = trace_model_file(file).graph
    assert sum(op.kind == "linear" for op in graph.ops) == 3
    assert str(graph.inputs[0].spec) == "float32[b, 8]"


def test_another_builder_can_be_picked(write) -> None:  # type: ignore[no-untyped-def]
    """`model.py:tied` builds with tied()."""
    graph = trace_model_file(load_model_file(write(GOOD) + ":tied")).graph
    assert graph.name == "model:tied"
    assert graph.weight_by_name["0.weight"].aliases == ("1.weight",)


def test_optional_functions_are_offered(write) -> None:  # type: ignore[no-untyped-def]
    """optimizer and data are there when the file has them; data may ignore the batch size."""
    file = load_model_file(write(GOOD))
    assert file.optimizer is not None and file.data is not None
    assert isinstance(file.optimizer(file.build().parameters()), torch.optim.SGD)
    assert next(iter(file.data(16)))[0].shape == (2, 4)
    least = load_model_file(write(GOOD.split("def loss")[0]))
    assert least.loss is None and least.optimizer is None and least.data is None


@pytest.mark.parametrize(
    ("signature", "wanted"), [("n", [7]), ("batch_size=3", [7]), ("", [4]), ("steps=2", [2])]
)
def test_data_takes_the_batch_size_by_any_name(write, signature: str, wanted: list[int]) -> None:  # type: ignore[no-untyped-def]
    """A required argument is the batch size; an optional one of another name is a setting."""
    name = signature.partition("=")[0] or "4"
    text = GOOD[: GOOD.index("def data()")] + f"def data({signature}):\n    return [{name}]\n"
    data = load_model_file(write(text)).data
    assert data is not None
    assert data(7) == wanted


def test_the_model_file_and_the_module_give_the_same_graph(write) -> None:  # type: ignore[no-untyped-def]
    """The fingerprint is the same from the command line and from Python."""
    file = load_model_file(write(GOOD))
    captured = trace_module(file.build(), file.inputs, loss=file.loss)
    assert captured.graph.fingerprint == trace_model_file(file).graph.fingerprint


def test_a_build_that_reads_values_is_built_for_real(write) -> None:  # type: ignore[no-untyped-def]
    """`.item()` in __init__ has no answer without memory."""
    text = GOOD.replace(
        "def tied", "def read():\n    return build(int(torch.ones(3).sum().item()))\n\ndef tied"
    )
    graph = trace_model_file(load_model_file(write(text) + ":read", settings={"width": 3})).graph
    assert str(graph.inputs[0].spec) == "float32[b, 3]"


def test_a_branch_on_values_is_followed_on_a_real_copy(write) -> None:  # type: ignore[no-untyped-def]
    """The model file is built again with memory; the result has none all the same."""
    text = (
        GOOD
        + """
class Branch(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.isfinite().all() else y

def branch():
    return Branch(4, 4)
"""
    )
    captured = trace_model_file(load_model_file(write(text) + ":branch"))
    assert [each.kind for each in captured.graph.assumptions] == ["value-dependent branch"]
    assert str(captured.graph.assumptions[0].source).endswith("model.py:27")
    assert all(tensor.is_meta for tensor in captured.weights().values())


WRONG = {
    "no build": ("def inputs(b): ...", "has no function 'build'", "def build():"),
    "close name": (
        GOOD.replace("def build(", "def built("),
        "Did you mean 'built'",
        "The smallest right file",
    ),
    "no inputs": ("def build(): ...", "has no function 'inputs'", "def inputs(batch_size):"),
    "build raises": (
        "def build():\n    return 1 / 0\ndef inputs(b): ...",
        r"model\.py:2: build\(\) raised ZeroDivisionError",
        "Mend this line",
    ),
    "not a module": (
        "def build():\n    return 3\ndef inputs(b): ...",
        r"build\(\) returned int, not a torch.nn.Module",
        "def build():",
    ),
    "inputs raise": (
        GOOD.replace("return (torch.randn(batch_size, width),)", "raise ValueError('no data')"),
        r"inputs\(\) raised ValueError: no data",
        "Mend this line",
    ),
    "syntax": ("def build(:\n  pass", r"model\.py:1: The file raised SyntaxError", "Mend"),
    "nameless": (
        'raise ModuleNotFoundError("a plugin is missing")',
        "a plugin is missing",
        "Install what this line needs",
    ),
    "inner module": ("import torch.no_such_part", "no_such_part", "pip install torch)"),
    "import": ("import no_such_package", "no_such_package", "pip install no_such_package"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_told_what_is_right(write, case: str) -> None:  # type: ignore[no-untyped-def]
    """Every message names the file and ends in a remedy."""
    text, message, remedy = WRONG[case]
    with pytest.raises(ModelFileError, match=message) as caught:
        trace_model_file(load_model_file(write(text)))
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_paths_that_are_no_model_files_are_refused(tmp_path: Path) -> None:
    """A missing file, a folder, another kind of file, a broken .pt2."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.pt2").write_text("x")
    for name, message in [
        ("none.py", "not a file"),
        (".", "a folder"),
        ("notes.txt", "neither a .py nor a .pt2"),
        ("bad.pt2", "is refused: it is no whole archive"),
    ]:
        with pytest.raises(ModelFileError, match=message):
            load_model_file(tmp_path / name)


def test_unknown_settings_are_refused(write) -> None:  # type: ignore[no-untyped-def]
    """With the known ones."""
    with pytest.raises(ModelFileError, match="no setting 'widht'") as caught:
        load_model_file(write(GOOD), settings={"widht": 8})
    assert caught.value.remedy == "Did you mean 'width'? Its settings: layers, width."


def test_inputs_that_do_not_fit_the_model_name_the_line(write) -> None:  # type: ignore[no-untyped-def]
    """The model's own error, found by running it."""
    text = GOOD.replace("torch.randn(batch_size, width)", "torch.randn(batch_size, 7)")
    with pytest.raises(CaptureError, match="fails on the example inputs"):
        trace_model_file(load_model_file(write(text)))


def test_a_saved_program_is_a_model(tmp_path: Path) -> None:
    """A .pt2 with a symbolic batch gives the graph of the module it was saved from, tied or not."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    example = torch.randn(3, 4)
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    graph = trace_model_file(load_model_file(tmp_path / "model.pt2")).graph
    wanted = trace_module(model, (example,)).graph
    assert graph.batch == "dynamic"
    assert [op.call for op in graph.ops] == [op.call for op in wanted.ops]
    assert [op.module for op in graph.ops] == [op.module for op in wanted.ops]
    assert graph.weights == wanted.weights


def test_a_saved_program_of_fixed_size_keeps_it(tmp_path: Path) -> None:
    """Without dynamic shapes the batch size is the one it was saved with."""
    program = torch.export.export(nn.Linear(4, 4), (torch.randn(3, 4),), strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    graph = trace_model_file(load_model_file(tmp_path / "model.pt2")).graph
    assert (graph.batch, graph.batch_size) == ("fixed", 3)
    with pytest.raises(ModelFileError, match="no settings"):
        load_model_file(tmp_path / "model.pt2", settings={"width": 3})


SMALL = {
    "mmt": {"branches": 2, "layers": 1, "hidden": 16, "heads": 2, "sequence": 4},
    "dlrm": {"branches": 2, "width": 8, "rows": 10, "columns": 4},
    "candle_uno": {"branches": 2, "width": 8},
    "gpt": {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 20, "context": 8},
    "clip": {"layers": 1, "hidden": 16, "heads": 2},
    "unet": {"depth": 1, "width": 4, "size": 8},
    "resnet": {"width": 4, "size": 32},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_example_is_captured_and_trains(name: str) -> None:
    """It shrinks by settings, has a loss in the graph, an optimizer and data."""
    file = load_model_file(ROOT / "examples" / f"{name}.py", settings=SMALL[name])
    graph = trace_model_file(file).graph
    assert graph.loss is not None and graph.batch == "dynamic" and graph.assumptions == ()
    assert file.optimizer is not None and file.data is not None and file.loss is not None
    model = file.build()
    batch = next(iter(file.data(3)))
    loss = file.loss(call_model(model, keep_taken(model, batch)), batch)
    torch.autograd.backward(loss)
    file.optimizer(model.parameters()).step()
    assert loss.isfinite()
    parameters = {name for name, _ in model.named_parameters()}
    assert {each.name for each in graph.weights if each.kind == "parameter"} == parameters


def keep_taken(model: nn.Module, batch: Any) -> dict[str, Any]:
    """What the model's forward takes of a batch; the rest is for the loss."""
    names = inspect.signature(model.forward).parameters
    return {name: value for name, value in batch.items() if name in names}


def test_ctrl_c_while_torch_captures(tmp_path: Path) -> None:
    """No exception passes through torch's C++, which would abort; who is deaf to it stays so."""
    (tmp_path / "model.py").write_text(
        "import os, signal\n"
        "def inputs(batch_size):\n"
        "    return ()\n"
        "def build():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n"
        "        print('an exception went through')\n"
    )
    words = [sys.executable, "-m", "graphplan", "trace", str(tmp_path / "model.py"), "--no-cache"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ended_at_once():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
