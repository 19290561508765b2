"""Measuring on the CPU: rows, groups, calibration, the cache and interruptions.

Nothing here asserts a time: where counts matter, the timing of a unit is replaced.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from graphplan.cli.main import run_command
from graphplan.cli.options import parse_budget
from graphplan.cost import measure_session
from graphplan.cost.cache import Measurement, ProfileCache
from graphplan.cost.hardware import find_device_type
from graphplan.cost.measure import Effort, Progress
from graphplan.cost.measure import measure_table as measure_table_slowly
from graphplan.cost.measure_body import Line, open_body
from graphplan.cost.measure_clock import CpuClock, find_clock
from graphplan.cost.measure_rebuild import rebuild_graph
from graphplan.cost.measure_session import Session, check_alive
from graphplan.cost.measure_step import prepare_step
from graphplan.cost.measure_unit import Numerics
from graphplan.cost.measure_units import Unit, list_units, run_on_fakes
from graphplan.cost.saved import count_saved_bytes
from graphplan.errors import InvalidOption, RunFailed
from graphplan.files import read_noun
from graphplan.frontend import Captured, trace_module
from graphplan.nouns.table import ProfileTable

QUICK = Effort(warm_up=0, min_repeats=1, max_repeats=2, budget_s=0.0, patience=1.0)
measure_table = functools.partial(
    measure_table_slowly, device="cpu", effort=QUICK, step_effort=QUICK, rounds=1
)


class Block(nn.Module):
    """Attention and an MLP, as in any transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + nn.functional.gelu(self.out(attended))


class Language(nn.Module):
    """Embedding, blocks, a head, and a frozen scale at the front."""

    def __init__(self, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.blocks(self.embedding(tokens)))
        return output


def token_loss(output: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Predict every token from itself; the targets are the inputs."""
    return nn.functional.cross_entropy(output.flatten(0, 1), batch[0].flatten())


def token_batch(batch_size: int) -> tuple[torch.Tensor, ...]:
    """Random tokens."""
    return (torch.randint(0, 50, (batch_size, 8)),)


@pytest.fixture(scope="module")
def captured() -> Captured:
    """A small language model."""
    return trace_module(Language(), token_batch, name="language")


@pytest.fixture(scope="module")
def deeper() -> Captured:
    """The same with more blocks."""
    return trace_module(Language(layers=5), token_batch, name="deeper")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """Replaces the timing of units; the list holds the ops of every unit that was timed."""
    timed: list[tuple[str, ...]] = []

    def fake(unit: Unit, *_: object) -> Measurement:
        timed.append(unit.ops)
        return Measurement(forward_s=1e-3, input_grad_s=2e-3, weight_grad_s=1e-3)

    monkeypatch.setattr(measure_session, "measure_unit", fake)
    yield timed


def test_every_op_gets_a_row_with_its_passes(captured: Captured) -> None:
    """Ops with weights have weight gradients; the embedding has no input gradient."""
    table = measure_table(captured, batch_sizes=[1, 4])
    assert table.graph == captured.graph.fingerprint
    assert (table.device, table.source) == ("cpu", "measured")
    assert [row.op for row in table.rows] == [op.name for op in captured.graph.ops]
    first = next(op.name for op in captured.graph.ops if op.kind == "embedding")
    assert table.row_by_op[first].input_grad_s == (0.0, 0.0)
    assert min(table.row_by_op[first].weight_grad_s) > 0
    linear = [op.name for op in captured.graph.ops if op.kind == "linear"]
    for name in linear:
        row = table.row_by_op[name]
        assert min(*row.forward_s, *row.input_grad_s, *row.weight_grad_s) > 0
        assert row.workspace_bytes[1] > row.workspace_bytes[0] > 0
    assert len(table.calibration) == 2
    assert all(ratio > 0 for ratio in table.calibration)
    assert "torch" in table.provenance


def test_short_ops_are_measured_in_groups(captured: Captured) -> None:
    """Views and small ops share a group whose time is divided among them."""
    table = measure_table(captured, batch_sizes=[2])
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        if row.group:
            groups.setdefault(row.group, []).append(row.op)
    assert groups
    for name, members in groups.items():
        assert name == f"{members[0]}..{members[-1]}"
        assert len(members) > 1


def test_ops_with_several_results_stay_with_their_readers(captured: Captured) -> None:
    """chunk and the getitems behind it are one unit."""
    units = list_units(captured.graph, short=frozenset())
    chunk = next(op for op in captured.graph.ops if op.kind == "chunk")
    unit = next(unit for unit in units if chunk.name in unit)
    assert [captured.graph.op_by_name[name].kind for name in unit] == ["chunk"] + ["getitem"] * 3
    assert [name for unit in units for name in unit] == [op.name for op in captured.graph.ops]


def test_equal_layers_are_timed_once(
    captured: Captured, deeper: Captured, counted: list[tuple[str, ...]]
) -> None:
    """Twice the layers do not mean twice the work."""
    measure_table(captured, batch_sizes=[1], calibrate_sizes=[])
    few = len(counted)
    measure_table(deeper, batch_sizes=[1], calibrate_sizes=[])
    assert len(counted) - few <= few + 2


def test_the_second_run_measures_nothing(
    captured: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """The cache on disk serves the same model without one measurement."""
    tables = []
    for _ in range(2):
        cache = ProfileCache("here", folder=tmp_path)
        tables.append(measure_table(captured, batch_sizes=[1, 2], cache=cache))
        first = len(counted)
    assert first == len(counted) > 0
    assert tables[0] == tables[1]


def test_a_similar_model_measures_what_is_new(
    captured: Captured, deeper: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """Another depth of the same widths needs less than a twentieth of the measurements."""
    cache = ProfileCache("here", folder=tmp_path)
    measure_table(captured, batch_sizes=[1, 2, 4], cache=cache)
    first = len(counted)
    again = ProfileCache("here", folder=tmp_path)
    measure_table(deeper, batch_sizes=[1, 2, 4], cache=again)
    assert len(counted) - first <= first / 20


def test_a_similar_model_takes_over_the_calibration(
    captured: Captured, deeper: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """The same layers in another number need no step of their own, and the table says so."""
    cache = ProfileCache("here", folder=tmp_path)
    first = measure_table(captured, batch_sizes=[2], cache=cache)
    again = measure_table(deeper, batch_sizes=[2], cache=ProfileCache("here", folder=tmp_path))
    assert again.calibration == first.calibration != ()
    assert "calibrated on a model of the same units" in again.provenance
    assert "calibrated on" not in first.provenance


def test_other_shapes_and_environments_are_not_confused(
    captured: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """Another width, batch size or device is measured anew."""
    measure_table(captured, batch_sizes=[1], cache=ProfileCache("a", folder=tmp_path))
    for model, size, environment in (
        (captured, 2, "a"),
        (captured, 1, "b"),
        (trace_module(Language(width=32), token_batch), 1, "a"),
    ):
        before = len(counted)
        cache = ProfileCache(environment, folder=tmp_path)
        measure_table(model, batch_sizes=[size], cache=cache)
        assert len(counted) - before > before / 4


def test_ctrl_c_keeps_what_was_measured(
    captured: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """An interruption gives a whole table that says so, and the next run goes on from there."""

    def interrupt(progress: Progress) -> None:
        if progress.num_done == 6:
            raise KeyboardInterrupt

    cache = ProfileCache("here", folder=tmp_path)
    table = measure_table(captured, batch_sizes=[1, 2], cache=cache, progress=interrupt)
    assert len(counted) == 6
    assert "interrupted" in table.provenance
    assert "the others by the fitted laws" in table.provenance
    assert [row.op for row in table.rows] == [op.name for op in captured.graph.ops]
    whole = measure_table(captured, batch_sizes=[1, 2], cache=ProfileCache("here", folder=tmp_path))
    assert "interrupted" not in whole.provenance
    assert len(set(counted[:6])) == 3
    assert len(counted) == len({(unit, i) for i, unit in enumerate(counted)})
    known = len(counted)
    measure_table(captured, batch_sizes=[1, 2], cache=ProfileCache("here", folder=tmp_path))
    assert len(counted) == known


def test_ctrl_c_before_the_first_measurement_ends_the_run(captured: Captured) -> None:
    """With nothing measured there is nothing to keep."""

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_table(captured, batch_sizes=[1], progress=interrupt)


def test_progress_tells_how_much_is_left(
    captured: Captured, counted: list[tuple[str, ...]]
) -> None:
    """Reports count up to the number of units, with the seconds left going to zero."""
    reports: list[Progress] = []
    measure_table(captured, batch_sizes=[1], progress=reports.append, calibrate_sizes=[])
    assert [report.num_done for report in reports] == list(range(len(counted) + 1))
    assert {report.num_units for report in reports} == {len(counted)}
    assert reports[0].seconds_left > 0
    assert reports[-1].seconds_left == 0


def test_rounds_keep_the_fastest(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disturbance in one round does not show in the table."""
    numbers = itertools.count()

    def disturbed(*_: object) -> Measurement:
        slow = 50.0 if next(numbers) % 7 == 0 else 1.0
        return Measurement(forward_s=slow, input_grad_s=slow, weight_grad_s=slow)

    monkeypatch.setattr(measure_session, "measure_unit", disturbed)
    table = measure_table(captured, batch_sizes=[1], calibrate_sizes=[], rounds=3)
    assert max(row.forward_s[0] for row in table.rows) == 1.0


def test_a_whole_step_leaves_the_model_alone() -> None:
    """Calibration changes neither weights nor gradients nor buffers of the user's module."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = trace_module(model, lambda b: (torch.rand(b + 1, 4),))
    values = run_on_fakes(open_body(found.module), found.graph, 4)
    step = prepare_step(open_body(found.module), found.graph, values, torch.device("cpu"))
    step()
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_indices_stay_in_range() -> None:
    """Embeddings, bags, gathers, scatters and class targets get indices that exist."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(7, 4, mode="sum")
            self.rows = nn.Embedding(3, 4)

        def forward(
            self, bags: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor
        ) -> torch.Tensor:
            looked_up = self.bag(bags, offsets) + self.rows(rows.view(-1))
            summed = torch.zeros(5, 4).index_add(0, rows, looked_up)
            return summed[rows % 5].gather(1, rows.unsqueeze(1))

    found = trace_module(
        Lookup(),
        lambda b: (
            torch.randint(0, 7, (3 * b,)),
            torch.arange(b) * 3,
            torch.randint(0, 3, (b,)),
        ),
    )
    table = measure_table(found, batch_sizes=[4])
    assert "could not run" not in table.provenance
    assert len(table.calibration) == 1


def test_losses_are_part_of_what_is_measured() -> None:
    """A graph with a loss has rows for it and calibrates from its gradient."""
    found = trace_module(Language(), token_batch, loss=token_loss)
    table = measure_table(found, batch_sizes=[2])
    loss = next(op.name for op in found.graph.ops if op.kind == "cross_entropy_loss")
    assert table.row_by_op[loss].forward_s[0] > 0
    assert table.row_by_op[loss].input_grad_s[0] > 0
    assert "could not run" not in table.provenance


def test_a_graph_without_its_model_is_measured_too(captured: Captured) -> None:
    """A rebuilt graph runs the same calls: same result as the captured module on equal weights."""
    rebuilt = rebuild_graph(captured.graph)
    line = Line(rebuilt.body.graph, captured.weights(), torch.device("cpu"))
    for size in (1, 3):
        batch = token_batch(size)
        assert torch.equal(line(*batch)[0], captured.module(*batch)[0])
    table = measure_table(rebuild_graph(captured.graph), batch_sizes=[2], effort=QUICK)
    assert "could not run" not in table.provenance
    assert len(table.calibration) == 1


def test_equal_calls_have_equal_signatures_from_graph_and_capture(
    captured: Captured, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """What was measured from a model file serves its graph.json, and the other way round."""
    for model in (captured, rebuild_graph(captured.graph)):
        cache = ProfileCache("here", folder=tmp_path)
        measure_table(model, batch_sizes=[1], cache=cache)
        first = len(counted)
    assert len(counted) == first


def test_devices_that_are_not_here_are_refused() -> None:
    """Measuring on a missing device names what is here and the estimate."""
    with pytest.raises(InvalidOption, match="is no device"):
        find_clock("gpu7")
    if not torch.accelerator.is_available():
        with pytest.raises(InvalidOption, match="--estimate"):
            find_clock("cuda")


def test_impossible_sizes_are_refused(captured: Captured) -> None:
    """Sizes start at one, and a fixed batch has one size."""
    with pytest.raises(InvalidOption, match="no micro-batch sizes"):
        measure_table(captured, batch_sizes=[0])
    fixed = trace_module(nn.Bilinear(3, 4, 2), (torch.rand(3), torch.rand(4)))
    with pytest.raises(InvalidOption, match="fixed batch"):
        measure_table(fixed, batch_sizes=[fixed.graph.batch_size + 1])


def test_saved_bytes_are_those_of_a_real_forward() -> None:
    """What the graph says autograd keeps equals the storages that its hooks see."""
    model = Language(layers=2)
    found = trace_module(model, token_batch, loss=token_loss)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    batch = token_batch(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = token_loss(model(*batch), batch)
    real = sum(size for pointer, (size, _) in kept.items() if pointer not in weights)
    assert loss.requires_grad
    assert count_saved_bytes(found.graph, 3) == pytest.approx(real, rel=0.05)


MODEL_FILE = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))

def inputs(batch_size):
    return (torch.rand(batch_size, 8),)
"""


def test_the_command_profiles_a_model_file(
    counted: list[tuple[str, ...]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`profile model.py --device cpu` writes a table; the second time everything is known."""
    monkeypatch.setenv("GRAPHPLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measure_session, "measure_step", lambda *_, **__: (0.1, 0.0))
    model, table = tmp_path / "model.py", tmp_path / "table.json"
    model.write_text(MODEL_FILE)
    arguments = ["profile", str(model), "--device", "cpu", "--batch-sizes", "2,4"]
    arguments += ["--ranks-per-host", "1"]
    for _ in range(2):
        assert run_command([*arguments, "-o", str(table), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        first = len(counted)
    assert first == len(counted) > 0
    assert (facts["device"], facts["source"], facts["ops"]) == ("cpu", "measured", 3)
    assert len(facts["calibration"]) == 2
    assert read_noun(table, ProfileTable).batch_sizes == (2, 4)


def test_the_command_writes_what_an_interruption_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends with code 130 and a whole table that says what was measured."""
    model, table = tmp_path / "model.py", tmp_path / "table.json"
    model.write_text(MODEL_FILE)
    calls = itertools.count()

    def interrupted(*_: object) -> Measurement:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return Measurement(forward_s=1e-4, input_grad_s=1e-4, weight_grad_s=1e-4)

    monkeypatch.setattr(measure_session, "measure_unit", interrupted)
    arguments = ["profile", str(model), "--device", "cpu", "--batch-sizes", "2,4", "--no-cache"]
    arguments += ["--ranks-per-host", "1"]
    assert run_command([*arguments, "-o", str(table)]) == 130
    found = read_noun(table, ProfileTable)
    assert "interrupted, 1 of 3 ops measured, the others by the fitted laws" in found.provenance
    assert len(found.rows) == 3
    assert "interrupted" in capsys.readouterr().out


def test_a_budget_leaves_the_rest_to_the_laws() -> None:
    """Without any time nothing is measured, every op has a row, and the table says so."""
    captured = trace_module(nn.Sequential(nn.Linear(8, 8), nn.GELU()), lambda b: torch.rand(b, 8))
    table = measure_table(captured, batch_sizes=[1, 4], budget_s=1e-9)
    assert [row.op for row in table.rows] == [op.name for op in captured.graph.ops]
    assert "budget of 1e-09 s spent" in table.provenance
    assert "0 of 2 ops measured" in table.provenance


def test_the_most_valuable_units_come_first() -> None:
    """Large products before small ones; all sizes of a unit follow each other."""
    layers = [nn.Linear(16, 512), nn.Linear(512, 512), nn.Linear(512, 16)]
    captured = trace_module(nn.Sequential(*layers), lambda b: torch.rand(b, 16))
    units = [(op.name,) for op in captured.graph.ops]
    kind = find_device_type("cpu")
    session = Session(captured, units, find_clock("cpu"), cache=None, device_type=kind)
    labels = [job.label for job in session.list_units((1, 64), Effort())]
    assert labels[:2] == [captured.graph.ops[1].name] * 2


def test_a_broken_device_stops_with_a_clear_message() -> None:
    """An error that stays is told apart from an op that refuses its data."""

    class Broken(CpuClock):
        def finish(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RunFailed, match="device failed while matmul was measured"):
        check_alive(Broken(), "matmul", ValueError("no"))
    check_alive(CpuClock(), "matmul", ValueError("no"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("5m", 300), ("90", 90), ("none", None)]
)
def test_budgets_are_times(text: str, seconds: float | None) -> None:
    """Seconds, minutes, or no limit."""
    assert parse_budget(text) == seconds
    with pytest.raises(InvalidOption, match="is no time"):
        parse_budget("soon")


def test_ops_are_measured_in_the_precision_that_is_trained() -> None:
    """Tensors are cast, or torch casts them; the provenance tells, and no step is calibrated."""
    captured = trace_module(nn.Sequential(nn.Linear(8, 8), nn.GELU()), lambda b: torch.rand(b, 8))
    for numerics, told in (
        (Numerics(cast="bfloat16"), "in bfloat16"),
        (Numerics(autocast="bfloat16"), "autocast to bfloat16"),
    ):
        table = measure_table(captured, batch_sizes=[4], numerics=numerics)
        assert told in table.provenance
        assert "could not run" not in table.provenance
        assert table.calibration == ()
        assert all(row.forward_s[0] > 0 for row in table.rows)


class Chain(nn.Module):
    """Two products with elementwise ops between them, which a compiler joins."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(nn.functional.gelu(self.first(x)))
        found: torch.Tensor = self.second(hidden).square().mean()
        return found


def test_compiled_units_hold_what_a_compiler_joins() -> None:
    """Elementwise ops between two products are one unit; a file's graph never becomes code."""
    captured = trace_module(Chain(), lambda b: (torch.randn(b, 16),))
    compiled = Numerics(compiled=True)
    table = measure_table(captured, batch_sizes=[4], numerics=compiled, rounds=1)
    assert "compiled" in table.provenance
    assert "could not run alone" not in table.provenance
    rows = {row.op: row for row in table.rows}
    assert rows["gelu"].group == rows["tanh"].group == "gelu..tanh"
    assert rows["linear"].weight_grad_s[0] > 0
    assert all(row.forward_s[0] > 0 for row in table.rows)
    with pytest.raises(InvalidOption, match="without generating code"):
        measure_table(rebuild_graph(captured.graph), batch_sizes=[4], numerics=compiled)
