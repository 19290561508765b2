"""What models of the world do besides plain layers: value checks, CTC, experts, odd inputs, losses.

Loss, gradients and buffers of the captured model equal eager exactly, at a batch size that was not
captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from graphplan.cost.flops import count_work
from graphplan.errors import CaptureError
from graphplan.frontend import Captured, trace_module
from tests.torch.comparing import assert_same_step, call_model, run_step
from tests.torch.test_capture_traps import Probe, check, inputs, kinds


def compare(module: nn.Module, given: Callable[[int], Any], **options: Any) -> Captured:
    """Capture a module on inputs of its own and compare it with eager."""
    captured = trace_module(module, given, **options)
    batch = given(5)
    eager = run_step(module, lambda: call_model(module, batch))
    assert_same_step(run_step(module, lambda: captured.run(batch)), eager)
    return captured


@pytest.mark.parametrize("form", ["if", "if not", "and", "assert", "lines"])
def test_checks_of_values_are_left_out_and_named(form: str) -> None:
    """They need no values to be followed, so that the model stays on fake tensors."""

    def forward(s: Any, x: Tensor) -> Any:
        if form == "if":
            if x.max() >= 1e9:
                raise ValueError("too large")
        elif form == "if not":
            if not (x < 1e9).all():
                raise ValueError("too large")
        elif form == "and":
            if x is not None and x.max() >= 1e9:
                raise ValueError("too large")
        elif form == "assert":
            assert (x < 1e9).all(), "too large"
        else:
            if (
                x.max()
                >= 1e9
            ):  # fmt: skip
                raise ValueError("too large")
        return s.a(x).sum()

    captured = check(forward)
    assert kinds(captured) == ["value check"]
    assert captured.graph.capture.startswith("torch.export, torch")
    assert [op.kind for op in captured.graph.ops] == ["linear", "sum"]
    assert __file__ in str(captured.graph.assumptions[0].source)


def test_a_branch_that_does_more_than_raise_is_no_check() -> None:
    """Nor is one whose parts may disagree."""

    def forward(s: Any, x: Tensor) -> Any:
        if not x.max() < 1e9 or not x.min() > -1e9:
            raise ValueError("too large")
        y = s.a(x)
        if (y * 0).sum() > 1:
            y = y * 2
        return y.sum()

    assert kinds(check(forward)) == ["value-dependent branch"] * 2


def test_distributions_check_their_arguments() -> None:
    """torch.distributions looks at the values of all that it is given."""

    def forward(s: Any, x: Tensor) -> Any:
        normal: Any = torch.distributions.Normal(s.a(x), s.b(x).exp())
        return normal.log_prob(normal.rsample()).mean()

    assert set(kinds(check(forward))) == {"value check"}


@pytest.mark.parametrize("flat", [True, False])
def test_ctc_loss_is_captured(flat: bool) -> None:
    """torch has no fake form of it when lengths are tensors."""

    def forward(s: Any, x: Tensor) -> Any:
        frames = torch.stack([s.a(x), s.b(x), s.a(x) + s.b(x)]).log_softmax(-1)
        targets = (x[:, :2] > 0).long() + 1
        lengths = torch.full((x.shape[0],), 2)
        chosen = targets.masked_select(targets > 0) if flat else targets
        return functional.ctc_loss(frames, chosen, lengths + 1, lengths, zero_infinity=True)

    captured = check(forward)
    op = next(op for op in captured.graph.ops if "ctc_loss" in op.kind)
    assert op.needs_backward


def test_rows_of_experts_are_expected_to_be_shared_out() -> None:
    """Four searches for different numbers in one tensor find a quarter of its rows each."""

    def forward(s: Any, x: Tensor) -> Any:
        expert = s.b(x).argmax(-1)
        y = torch.zeros_like(x)
        for index in range(4):
            rows = (expert == index).nonzero().squeeze(-1)
            y = y.index_add(0, rows, s.a(x[rows]))
        return y.pow(2).sum() + s.b(x).sum()

    captured = trace_module(Probe(forward), lambda batch_size: (torch.randn(8 * batch_size, 4),))
    linear = [op for op in captured.graph.ops if op.kind == "linear" and op.output is None]
    assert [str(op.expected) for op in linear] == ["float32[2*b, 4]"] * 4
    work = count_work(captured.graph, 3)
    assert all(work[op.name].forward_flops == 2 * 6 * 4 * 4 for op in linear)


def test_a_search_that_stands_alone_is_expected_to_find_half() -> None:
    """And never nothing."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        return y[(x[:, 0] > 0).nonzero().squeeze(-1)].sum() + y[y > 0].sum()

    captured = check(forward)
    unsized = {op.kind: str(op.expected) for op in captured.graph.ops if op.expected}
    assert unsized["squeeze"] == "int64[b]"
    assert all(op.expected.num_elements(1) > 0 for op in captured.graph.ops if op.expected)


@dataclasses.dataclass
class Pair:
    """A batch as some collating functions make it."""

    first: Tensor
    others: list[Tensor]


class TakesPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, pair: Pair, scale: list[Tensor]) -> Any:
        return (self.layer(pair.first) * sum(pair.others) * scale[0]).sum()


def test_dataclasses_and_lists_are_inputs() -> None:
    """Their tensors are inputs of the graph, named by where they sit."""

    def given(batch_size: int) -> Any:
        def rows() -> Tensor:
            return torch.randn(batch_size, 4)

        return Pair(rows(), [rows(), rows()]), [rows()]

    captured = compare(TakesPair(), given)
    paths = [each.path for each in captured.graph.inputs]
    assert paths == ["pair.first", "pair.others.0", "pair.others.1", "scale.0"]


def test_several_losses_are_added() -> None:
    """A dict of losses, as for a GAN: the sum is differentiated, each is an output."""

    def loss(output: Any, batch: Any) -> Any:
        return {"critic": output.pow(2).mean(), "maker": -output.mean()}

    torch.manual_seed(0)
    module = nn.Linear(4, 4)
    captured = trace_module(module, inputs, loss=loss)
    batch = inputs(5)
    with torch.no_grad():
        losses = loss(module(*batch), batch)
        found = captured.run(batch)
    assert {key: float(value) for key, value in found.items()} == {
        "loss": float(losses["critic"] + losses["maker"]),
        **{key: float(value) for key, value in losses.items()},
    }
    assert captured.graph.loss == captured.graph.outputs[0]
    eager = run_step(module, lambda: sum(loss(module(*batch), batch).values()))
    assert_same_step(run_step(module, lambda: captured.run(batch)["loss"]), eager)


def test_compiled_and_checkpointed_parts_are_traced_through() -> None:
    """torch.compile's wrapper leaves no trace; a checkpoint around it is left out and said."""
    compiled: Any = torch.compile(nn.Linear(4, 4))
    module = Probe(
        lambda s, x: checkpoint(s.compiled, s.a(x), use_reentrant=False).sum(), compiled=compiled
    )
    captured = trace_module(module, inputs)
    assert [op.kind for op in captured.graph.ops] == ["linear", "linear", "sum"]
    assert kinds(captured) == ["checkpoint"]
    plain: Any = compiled._orig_mod
    batch = inputs(5)
    eager = run_step(module, lambda: plain(module.a(*batch)).sum())
    assert_same_step(run_step(module, lambda: captured.run(batch)), eager)


class Power(nn.Module):
    """Improves a buffer under no_grad, as spectral norm does."""

    u: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("u", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.u.copy_(self.weight @ self.u)
            torch.div(self.u, self.weight.norm(), out=self.u)
        return x @ self.weight / (self.u.norm() + 1)


def test_writes_under_no_grad_carry_no_gradient() -> None:
    """A buffer that is written from a weight must not remember the weight."""
    captured = check(lambda s, x: s.power(s.a(x)).sum(), power=Power())
    assert {op.kind for op in captured.graph.ops if op.mutates} == {"copy_", "div"}


def test_an_op_that_cannot_be_sized_is_refused_with_its_line() -> None:
    """It used to be an error of torch's own without a place."""

    def forward(s: Any, x: Tensor) -> Any:
        size = (x[0, :2] * 0 + 3).long().tolist()
        grid = s.a(x)[:, None, None, :]
        return functional.interpolate(grid, size=size, mode="bilinear").sum()

    with pytest.raises(CaptureError, match="cannot be sized") as caught:
        trace_module(Probe(forward), inputs)
    assert __file__ in caught.value.message
    assert ".item()" in caught.value.remedy


def test_flex_attention_is_refused_with_a_way_out() -> None:
    """It has no backward on the CPU, where models are captured."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)[:, None, None, :].expand(-1, 1, 16, -1)
        found: Any = flex_attention(y, y, y)
        return found.sum()

    with pytest.raises(CaptureError, match="FlexAttention") as caught:
        trace_module(Probe(forward), inputs)
    assert "scaled_dot_product_attention" in caught.value.remedy
