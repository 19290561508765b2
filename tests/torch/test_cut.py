"""Cutting by hand: every shape of cut gives the loss and gradients of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphplan.errors import CutError
from graphplan.frontend import (
    Captured,
    StageModule,
    cut_graph,
    load_weights,
    run_stages,
    shared_weights,
    trace_module,
)
from tests.torch.comparing import assert_same_step, call_model, run_cut, run_step

Assign = Callable[[str, str], int]
"""Stage of an op from its name and module."""


class Towers(nn.Module):
    """Two towers, a skip over both, dropout, batch norm and tied ends."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.left = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.right = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.end = nn.Linear(4, 4, bias=False)
        self.end.weight = self.start.weight

    def forward(self, x: Tensor, other: Tensor) -> Any:
        x = self.start(x)
        left, right = self.left(x), self.right(x + other)
        mixed = self.end(left * right + x)
        return {"loss": mixed.pow(2).mean(), "mixed": mixed, "left": left}


def inputs(batch_size: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(batch_size)
    return torch.randn(batch_size, 4, generator=make), torch.randn(batch_size, 4, generator=make)


@pytest.fixture(scope="module")
def towers() -> tuple[Towers, Captured]:
    torch.manual_seed(0)
    module = Towers()
    return module, trace_module(module, inputs)


def assign(captured: Captured, place: Assign) -> dict[str, int]:
    return {op.name: place(op.name, op.module) for op in captured.graph.ops}


def branches(name: str, module: str) -> int:
    """0 -> (1, 2) -> 3."""
    if module.startswith("left"):
        return 1
    if module.startswith("right") or name == "add":
        return 2
    return 0 if module == "start" else 3


CUTS: dict[str, Assign] = {
    "one stage": lambda name, module: 0,
    "branches": branches,
    "numbered backwards": lambda name, module: 3 - branches(name, module),
    "skip over a stage": lambda name, module: {0: 0, 1: 1, 2: 1, 3: 2}[branches(name, module)],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("batch_size", [2, 5])
def test_cut_models_step_like_whole_ones(
    towers: tuple[Towers, Captured], cut: str, batch_size: int
) -> None:
    """Tied weights in two stages, a value read by three, dropout in order, running statistics."""
    module, captured = towers
    batch = inputs(batch_size)
    eager = run_step(module, lambda: call_model(module, batch)["loss"])
    found = run_cut(captured, module, assign(captured, CUTS[cut]), batch)
    assert_same_step(found, eager, tolerance=1e-6)


def test_every_prefix_is_a_cut(towers: tuple[Towers, Captured]) -> None:
    """Any place in the order of the ops can be cut, views included."""
    module, captured = towers
    batch = inputs(3)
    eager = run_step(module, lambda: call_model(module, batch)["loss"])
    written = [i for i, op in enumerate(captured.graph.ops) if op.mutates]
    for end in range(1, len(captured.graph.ops)):
        if written[0] < end <= written[-1]:
            continue
        stages = {op.name: int(i >= end) for i, op in enumerate(captured.graph.ops)}
        assert_same_step(run_cut(captured, module, stages, batch), eager, tolerance=1e-6)


def test_stages_say_what_they_read_return_and_hold(towers: tuple[Towers, Captured]) -> None:
    """Model inputs go to the stages that read them; weights only to those that use them."""
    _, captured = towers
    stages = cut_graph(captured, assign(captured, branches))
    assert [[(each.name, each.source) for each in stage.inputs] for stage in stages] == [
        [("x", None)],
        [("linear", 0)],
        [("linear", 0), ("other", None)],
        [("linear_2", 1), ("dropout", 2), ("linear", 0)],
    ]
    assert [stage.outputs for stage in stages] == [
        ("linear",),
        ("linear_2",),
        ("dropout",),
        ("linear_4", "mean"),
    ]
    assert [stage.loss for stage in stages] == [None, None, None, "mean"]
    assert [sorted(stage.state_dict()) for stage in stages[:2]] == [
        ["start.bias", "start.weight"],
        ["left.0.bias", "left.0.weight", "left.2.bias", "left.2.weight"],
    ]
    assert [[each.needs_grad for each in stage.inputs] for stage in stages] == [
        [False],
        [True],
        [True, False],
        [True, True, True],
    ]
    assert shared_weights(stages) == {"start.weight": (0, 3)}


def test_stages_are_called_by_position_or_name(towers: tuple[Towers, Captured]) -> None:
    """Their inputs are parameters of that name."""
    _, captured = towers
    first, *_ = cut_graph(captured, assign(captured, branches))
    x = torch.randn(3, 4)
    assert torch.equal(first(x)[0], first(x=x)[0])
    assert torch.equal(first.run_values({"x": x, "unused": x})["linear"], first(x)[0])


def test_outputs_come_back_in_the_users_nest(towers: tuple[Towers, Captured]) -> None:
    """From values by name, as a pipeline has them."""
    module, captured = towers
    batch = inputs(3)
    torch.manual_seed(1)
    wanted = module(*batch)
    stages = cut_graph(captured, assign(captured, branches))
    torch.manual_seed(1)
    values = run_stages(stages, captured.flatten_batch(batch)).outputs
    found = captured.unflatten_values(values)
    assert list(found) == ["loss", "mixed", "left"]
    assert torch.allclose(found["mixed"], wanted["mixed"])


def test_a_gradient_may_start_at_any_output() -> None:
    """Without a loss the caller gives the gradients of the outputs."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    captured = trace_module(module, lambda b: (torch.randn(b, 4),))
    x, weight = torch.randn(3, 4), torch.randn(3, 4)
    torch.autograd.backward((module(x) * weight).sum())
    stages = cut_graph(captured, {op.name: i for i, op in enumerate(captured.graph.ops)})
    values = captured.flatten_batch((x,))
    found = run_stages(stages, values, output_gradients={"linear_1": weight}).gradients
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter.grad)


def test_a_stage_without_batched_inputs_learns_the_batch_size() -> None:
    """It is given a model input that tells it."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.a = nn.Embedding(3, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            rows = self.table(torch.arange(3)).expand(x.shape[0], 3, 4)
            return (self.a(x).unsqueeze(1) * rows).sum()

    torch.manual_seed(0)
    module = Positions()
    captured = trace_module(module, lambda b: (torch.randn(b, 4),))
    rows = {"arange", "embedding", "expand"}
    stages = assign(captured, lambda name, _: 0 if name in rows else 1)
    batch = (torch.randn(5, 4),)
    assert [each.name for each in cut_graph(captured, stages)[0].inputs] == ["x"]
    eager = run_step(module, lambda: module(*batch))
    assert_same_step(run_cut(captured, module, stages, batch), eager, tolerance=1e-6)


def test_frozen_parameters_get_no_gradient() -> None:
    """A stage in front of the first trained weight has no backward at all."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    captured = trace_module(
        module, lambda b: (torch.randn(b, 4),), loss=lambda output, batch: output.pow(2).mean()
    )
    stages = {op.name: min(i, 2) for i, op in enumerate(captured.graph.ops)}
    batch = (torch.randn(5, 4),)
    eager = run_step(module, lambda: module(*batch).pow(2).mean())
    found = run_cut(captured, module, stages, batch)
    assert sorted(found.gradients) == ["2.bias", "2.weight"]
    assert_same_step(found, eager, tolerance=1e-6)
    assert not any(each.needs_grad for each in cut_graph(captured, stages)[2].inputs)


def test_weights_are_loaded_into_a_stage_that_has_none() -> None:
    """From a state dict, under any of their names; constants of the forward are there already."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: Tensor) -> Any:
            return (self.b(self.a(x) + self.get_buffer("shift")) * torch.tensor(0.5)).sum()

    def make(batch_size: int) -> tuple[Tensor]:
        return (torch.randn(batch_size, 4),)

    with torch.device("meta"):
        model = Model()
    captured = trace_module(model, make)
    torch.manual_seed(0)
    real = Model()
    stages = cut_graph(captured, {op.name: int(i > 0) for i, op in enumerate(captured.graph.ops)})
    state = dict(real.state_dict(keep_vars=True))
    with pytest.raises(CutError, match=r"needs the parameter 'b\.bias'"):
        load_weights(stages[1], {"a.weight": state["a.weight"], "shift": state["shift"]})
    with pytest.raises(CutError, match=r"has shape \[1\]"):
        load_weights(stages[0], {"a.weight": torch.zeros(1)})
    for stage in stages:
        load_weights(stage, {"b.weight" if k == "a.weight" else k: v for k, v in state.items()})
    batch = make(3)
    eager = run_step(real, lambda: real(*batch))
    result = run_stages(stages, captured.flatten_batch(batch))
    for name, gradient in eager.gradients.items():
        assert torch.allclose(result.gradients[name], gradient)


def illegal(towers: tuple[Towers, Captured], stage_by_op: dict[str, int]) -> CutError:
    with pytest.raises(CutError) as caught:
        cut_graph(towers[1], stage_by_op)
    assert caught.value.remedy
    return caught.value


def test_illegal_maps_are_refused(towers: tuple[Towers, Captured]) -> None:
    """Each message names the ops and the stages."""
    good = assign(towers[1], branches)
    missing = {name: stage for name, stage in good.items() if name != "tanh"}
    assert "1 of 14 ops have no stage: tanh" in illegal(towers, missing).message
    assert "does not have: none" in illegal(towers, good | {"none": 0}).message
    circle = illegal(towers, good | {"tanh": 3}).message
    assert "stage 1 -> stage 3 ('linear_1' -> 'tanh')" in circle
    assert "stage 3 -> stage 1 ('tanh' -> 'linear_2')" in circle


def test_results_of_one_op_stay_with_it() -> None:
    """A split op and the parts taken from it cannot be separated."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            first, second = self.a(x).chunk(2, dim=-1)
            return (first * second).sum()

    captured = trace_module(Split(), lambda b: (torch.randn(b, 4),))
    with pytest.raises(CutError, match="not one tensor") as caught:
        cut_graph(captured, assign(captured, lambda name, _: int(name == "getitem_1")))
    assert caught.value.remedy == "Put 'getitem_1' into stage 0."


def test_a_written_buffer_has_one_home() -> None:
    """Two stages with copies of a running average would drift apart."""

    class Average(nn.Module):
        average: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.register_buffer("average", torch.zeros(4))

        def forward(self, x: Tensor) -> Any:
            y = self.a(x)
            shifted = y - self.average
            self.average.add_(y.detach().mean(0))
            return shifted.pow(2).sum()

    captured = trace_module(Average(), lambda b: (torch.randn(b, 4),))
    with pytest.raises(CutError, match="both use the buffer 'average'"):
        cut_graph(captured, assign(captured, lambda name, _: int(name == "add_")))


def test_stages_are_not_copied(towers: tuple[Towers, Captured]) -> None:
    """A deep copy would lose what a stage knows of itself."""
    import copy

    stage: StageModule = cut_graph(towers[1], assign(towers[1], branches))[0]
    with pytest.raises(TypeError, match="cut the captured model again"):
        copy.deepcopy(stage)


def test_dropout_is_the_same_when_the_order_is(towers: tuple[Towers, Captured]) -> None:
    """With the same seed, composed stages equal the whole model exactly."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(4)))
    captured = trace_module(
        module,
        lambda b: (torch.randn(b, 8),),
        loss=lambda output, batch: functional.mse_loss(output, batch[0]),
    )
    batch = (torch.randn(6, 8),)
    eager = run_step(module, lambda: functional.mse_loss(module(*batch), batch[0]))
    stages = {op.name: i // 3 for i, op in enumerate(captured.graph.ops)}
    assert_same_step(run_cut(captured, module, stages, batch), eager)
