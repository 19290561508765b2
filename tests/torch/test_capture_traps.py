"""What torch.export gets wrong in silence, refuses, or leaves out: each a small model.

Unless a test says otherwise, loss, gradients and buffers of the captured model equal eager exactly,
at a batch size that was not captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from graphplan.errors import CaptureError
from graphplan.frontend import Captured, cut_graph, trace_module
from tests.torch.comparing import assert_same_step, call_model, run_step

Forward = Callable[[Any, Tensor], Any]


class Probe(nn.Module):
    """Two linear layers and a forward from outside."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def inputs(batch_size: int) -> tuple[Tensor]:
    return (torch.randn(batch_size, 4, generator=torch.Generator().manual_seed(batch_size)),)


def capture(forward: Forward, **parts: Any) -> tuple[Probe, Captured]:
    torch.manual_seed(0)
    probe = Probe(forward, **parts)
    return probe, trace_module(probe, inputs)


def check(forward: Forward, *, batch: str = "dynamic", **parts: Any) -> Captured:
    """Capture, compare with eager at another batch size, return the capture."""
    probe, captured = capture(forward, **parts)
    assert captured.graph.batch == batch
    given = inputs(5 if batch == "dynamic" else captured.graph.batch_size)
    eager = run_step(probe, lambda: call_model(probe, given))
    assert_same_step(run_step(probe, lambda: captured.run(given)), eager)
    return captured


def kinds(captured: Captured) -> list[str]:
    return [each.kind for each in captured.graph.assumptions]


class Scaled(torch.autograd.Function):
    """Its backward is not the derivative of its forward, so that losing it shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 100 + ctx.saved_tensors[0], None


class Pair(torch.autograd.Function):
    """Two results, the new style with setup_context, and a size among its arguments."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.size = inputs[1]

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        return first * 7 + second * ctx.size, None


apply_scaled: Any = Scaled.apply  # bound at import: patching `apply` would come too late
apply_pair: Any = Pair.apply


def test_custom_functions_keep_their_backward() -> None:
    """A custom autograd.Function becomes one opaque op that runs its own backward."""
    captured = check(lambda s, x: (apply_scaled(s.a(x), 3.0) * s.b(x)).sum())
    opaque = [op for op in captured.graph.ops if op.target.startswith("opaque.")]
    assert [op.inputs for op in opaque] == [("linear",)]
    assert "3.0" in opaque[0].call
    assert opaque[0].saved == ("linear",)


class Reversed(torch.autograd.Function):
    """Gradient reversal: hands on a view of what it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Straight(torch.autograd.Function):
    """Hands on the very tensor that it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.1, 0.1)


@pytest.mark.parametrize("function", [Reversed, Straight])
def test_custom_functions_that_hand_on_their_input_keep_their_backward(function: Any) -> None:
    """The tracer took the view for the input, and gradient reversal was gone without a word."""
    captured = check(lambda s, x: (function.apply(s.a(x)) * s.b(x)).sum())
    assert [op.target for op in captured.graph.ops if op.target.startswith("opaque.")] == [
        f"opaque.{function.__name__}"
    ]


def test_custom_functions_with_several_results() -> None:
    """Functions with setup_context, several results and a symbolic size work too."""

    def forward(s: Any, x: Tensor) -> Any:
        first, second = apply_pair(s.a(x), x.shape[0])
        return (first * first).sum() + (second * second).sum()

    check(forward)


def test_custom_functions_work_in_a_stage() -> None:
    """An opaque op can be cut away from what feeds it."""
    _, captured = capture(lambda s, x: (apply_scaled(s.a(x), 3.0) * s.b(x)).sum())
    first = {"linear"}
    stages = cut_graph(captured, {op.name: int(op.name not in first) for op in captured.graph.ops})
    assert [stage.outputs for stage in stages] == [("linear",), ("sum_1",)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_are_left_out_and_said(reentrant: bool) -> None:
    """Both kinds are traced through; a reentrant one must not switch gradients off."""
    captured = check(
        lambda s, x: s.b(checkpoint(s.b, s.a(x), use_reentrant=reentrant)).relu().sum()
    )
    assert kinds(captured) == ["checkpoint"]
    assert __file__ in str(captured.graph.assumptions[0].source)
    assert all(op.needs_backward for op in captured.graph.ops)


def test_gradients_stop_where_no_grad_ends() -> None:
    """Ops in a no_grad block need no backward; a nested enable_grad block does."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        with torch.no_grad():
            target = s.b(y).softmax(-1)
            twice = target * 2
            with torch.enable_grad():
                z = s.b(x)
        return (y * target).sum() + twice.sum() + z.sum()

    captured = check(forward)
    linears = [op.needs_backward for op in captured.graph.ops if op.kind == "linear"]
    assert linears == [True, False, True]
    softmax = next(op for op in captured.graph.ops if op.kind == "softmax")
    assert not softmax.needs_backward and softmax.saved == ()


def test_autocast_is_cut_open() -> None:
    """Every op of an autocast block is an op of the graph, with autocast in its call."""

    def forward(s: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = s.a(x)
            mixed = torch.einsum("ij,kj->ik", torch.softmax(s.b(y), -1), y)
            with torch.autocast("cpu", enabled=False):
                plain = s.a(y.float())
        return mixed.float().mean() + plain.mean()

    captured = check(forward)
    linears = [op for op in captured.graph.ops if op.kind == "linear"]
    under = [op.call.startswith("autocast[bfloat16].") for op in linears]
    assert under == [True, True, False]
    assert [str(op.output) for op in linears] == ["bfloat16[b, 4]"] * 2 + ["float32[b, 4]"]


def test_autocast_for_an_absent_gpu_keeps_its_dtype() -> None:
    """autocast("cuda") is captured as it would run there, whatever this machine has."""

    def forward(s: Any, x: Tensor) -> Any:
        with torch.autocast("cuda"):
            y = s.a(x)
        return y.float().sum()

    _, captured = capture(forward)
    assert str(captured.graph.ops[0].output) == "float16[b, 4]"


def test_writes_into_views_reach_the_whole() -> None:
    """In-place ops on slices, transposes, reshapes and by mask become functional."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        y[:, 1:].mul_(2)
        y.view(-1).add_(1)
        z = torch.zeros_like(y)
        z[:, 0] = y[:, 1]
        z[:, 2:].copy_(y[:, :2])
        y[y > 0] = 0.5
        y.t().mul_(3)
        y.view(-1, 2, 2).permute(2, 0, 1)[0].exp_()
        kept = torch.empty(x.shape[0], 1).bernoulli_(0.5)
        return (y * y).sum() + (z * z).sum() + (kept * y).sum()

    captured = check(forward)
    assert all(op.mutates == () for op in captured.graph.ops)
    assert not any(op.target.split(".")[1].endswith("_") for op in captured.graph.ops[:-12])


def test_writes_into_one_of_several_views_reach_the_whole() -> None:
    """A view that comes from a split is written back too."""

    def forward(s: Any, x: Tensor) -> Any:
        y = torch.zeros(x.shape[0], 4)
        first, second = torch.split(y, [1, 3], dim=1)
        first.add_(2)
        rows = y.unbind(1)
        rows[2].fill_(5)
        return (s.a(x) * y).sum() + second.sum()

    check(forward)


def test_writes_that_cannot_be_untangled_are_refused() -> None:
    """A write through an expanded view is an error with the user's line."""

    def forward(s: Any, x: Tensor) -> Any:
        y = torch.zeros(1, 4)
        y.expand(1, 4)[0].unfold(0, 2, 2)[0].add_(1)
        return s.a(x + y).sum()

    with pytest.raises(CaptureError, match="writes in place") as caught:
        capture(forward)
    assert "clone" in caught.value.remedy


class Unfolded(nn.Module):
    """Writes through a view that cannot be put back."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.unfold(1, 2, 2)[:, 0].add_(1)
        return y


def test_writes_that_cannot_be_untangled_stay_in_an_opaque_op() -> None:
    """Where they happen in a sub-module of its own."""
    captured = check(lambda s, x: s.unfolded(s.a(x)).pow(2).sum(), unfolded=Unfolded())
    assert kinds(captured) == ["opaque"]


def test_buffers_that_the_forward_writes_are_kept() -> None:
    """Running averages are updated as in eager, and the graph says which op writes them."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        s.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        s.average[0] = 3.0
        return ((y - s.average) ** 2).sum()

    captured = check(forward, average=torch.zeros(4))
    written = {op.kind for op in captured.graph.ops if op.mutates == ("average",)}
    assert written == {"mul_", "add_", "copy_"}


def test_batch_norm_is_known_to_write_its_statistics() -> None:
    """Its schema does not say so."""
    captured = check(lambda s, x: s.norm(s.a(x)).sum(), norm=nn.BatchNorm1d(4))
    mutates = {op.kind: op.mutates for op in captured.graph.ops if op.mutates}
    assert mutates == {
        "add_": ("norm.num_batches_tracked",),
        "batch_norm": ("norm.running_mean", "norm.running_var"),
    }


def test_capture_leaves_the_module_as_it_was() -> None:
    """Buffers, cached attributes, the random state and the gradient mode are untouched."""

    def forward(s: Any, x: Tensor) -> Any:
        if not hasattr(s, "table"):
            s.table = torch.arange(4.0)
            s.a.register_forward_hook(lambda module, args, output: output)
        s.average += 1
        if s.a(x).sum() > 1e9:
            return x.sum()
        return (functional.dropout(s.a(x)) * s.table * s.average).sum()

    torch.manual_seed(7)
    probe = Probe(forward, average=torch.zeros(4))
    parameters = dict(probe.named_parameters())
    state = torch.random.get_rng_state()
    trace_module(probe, lambda batch_size: (torch.ones(batch_size, 4),))
    assert not hasattr(probe, "table") and not probe.a._forward_hooks
    assert torch.equal(dict(probe.named_buffers())["average"], torch.zeros(4))
    assert all(parameters[name] is each for name, each in probe.named_parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_a_failed_capture_leaves_gradients_on() -> None:
    """torch.export leaves grad mode off when it fails inside no_grad."""

    def forward(s: Any, x: Tensor) -> Any:
        with torch.no_grad():
            scale = float(s.a(x).numpy().max())
        return s.a(x).sum() * scale

    with pytest.raises(CaptureError):
        capture(forward)
    assert torch.is_grad_enabled()


def test_branches_on_values_follow_the_example() -> None:
    """The outcome is an assumption with the user's line."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        if (y * 0).sum() > 1:
            y = y * 2
        return s.b(y).sum()

    captured = check(forward)
    assert kinds(captured) == ["value-dependent branch"]
    assert "if (y * 0).sum() > 1:" in captured.graph.assumptions[0].text
    assert __file__ in str(captured.graph.assumptions[0].source)
    assert "following" in captured.graph.capture


def test_random_branches_are_said_to_be_frozen() -> None:
    """Layer drop is frozen, and the numbers drawn for it stay in step with dropout."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        if torch.rand([]) < 2.0:
            y = s.b(y)
        return functional.dropout(y, 0.5).pow(2).sum()

    captured = check(forward)
    assert kinds(captured) == ["frozen random choice"]


class Reader(nn.Module):
    """Reads values with numpy: no tracer can follow. It has weights and a buffer that it writes."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, scale: float) -> tuple[Tensor, dict[str, Any]]:
        self.calls += 1
        largest = float(x.detach().numpy().max())
        return (x * self.weight).exp() * largest * scale, {"sum": x.sum(-1), "none": None}


def test_untraceable_submodules_become_opaque_ops() -> None:
    """They keep their weights, results, buffers and gradients, for any batch size."""

    def forward(s: Any, x: Tensor) -> Any:
        y, extra = s.reader(s.a(x), scale=0.5)
        assert extra["none"] is None
        return s.b(y).sum() + extra["sum"].pow(2).sum()

    captured = check(forward, reader=Reader())
    assert kinds(captured) == ["opaque"]
    assert ".numpy() is not supported" in captured.graph.assumptions[0].text
    assert __file__ in str(captured.graph.assumptions[0].source)
    op = next(op for op in captured.graph.ops if op.target.startswith("opaque."))
    assert op.weights == ("reader.weight", "reader.calls")
    assert op.mutates == ("reader.calls",)
    assert op.needs_backward and op.saved == ("linear",)
    assert op.saved_bytes == (0, 4 * 4), "the result of exp, 4 floats for each sample"
    sums = next(op for op in captured.graph.ops if op.call == "getitem(%0, 1)")
    assert str(sums.output) == "float32[b]"


def test_untraceable_code_at_the_top_names_the_line() -> None:
    """Nothing can be made opaque: the error says which line and what to change."""

    def forward(s: Any, x: Tensor) -> Any:
        return s.a(x).sum() * float(x.numpy().max())

    with pytest.raises(CaptureError) as caught:
        capture(forward)
    assert f"{__file__}:" in caught.value.message
    assert "sub-module" in caught.value.remedy


def test_a_model_that_fails_on_its_inputs_is_the_users_error() -> None:
    """The message shows the error, the line and the signature of forward."""
    with pytest.raises(CaptureError, match="fails on the example inputs") as caught:
        trace_module(nn.Linear(3, 3), inputs)
    assert "shapes cannot be multiplied" in caught.value.message
    assert caught.value.remedy.endswith("Linear.forward takes input.")


@pytest.mark.parametrize(
    "forward",
    [
        lambda s, x: sum(s.a(x)[i].sum() for i in range(int(x.shape[0]))),
        lambda s, x: s.a(x).sum() / math.sqrt(x.shape[0]),
        lambda s, x: (s.a(x) @ s.a(x).T).reshape(-1).pow(2).sum(),
    ],
    ids=["loop", "sqrt", "square"],
)
def test_a_batch_size_that_cannot_stay_symbolic_is_fixed(forward: Forward) -> None:
    """It is never fixed in silence."""
    captured = check(forward, batch="fixed")
    assert kinds(captured) == ["fixed batch"]
    assert __file__ in str(captured.graph.assumptions[0].source)
    assert not any(op.output is not None and op.output.has_batch for op in captured.graph.ops)


def test_a_batch_size_used_as_a_number_is_unified() -> None:
    """`len(x)` fixes a symbolic trace; traces at three sizes give the graph, and it says so."""

    def forward(s: Any, x: Tensor) -> Any:
        scores = s.a(x) @ s.b(x).T
        pairs = torch.arange(len(scores))
        return functional.cross_entropy(scores, pairs) + s.a(x).view(2 * len(x), -1).sum()

    captured = check(forward)
    assert kinds(captured) == ["linear batch"]
    assert __file__ in str(captured.graph.assumptions[0].source)
    assert {op.call for op in captured.graph.ops} >= {
        "aten.arange.default(b)",
        "aten.view.default(%0, [2*b, -1])",
    }


def test_constants_that_follow_the_batch_size_fix_it() -> None:
    """A value built from the batch size is not visible as a size: nothing is unified."""

    def forward(s: Any, x: Tensor) -> Any:
        return (s.a(x) * torch.tensor(float(len(x)))).sum()

    captured = check(forward, batch="fixed")
    assert kinds(captured) == ["fixed batch"]


def test_scalars_of_the_batch_size_stay_symbolic() -> None:
    """Sizes in views, divisions and new tensors follow the batch size."""

    def forward(s: Any, x: Tensor) -> Any:
        size = x.shape[0]
        y = s.a(x).reshape(size * 2, 2)
        zeros = torch.zeros(size + 3, 2)
        return torch.cat([y, zeros]).pow(2).sum() / (size / 2)

    captured = check(forward)
    calls = {op.name: op.call for op in captured.graph.ops}
    assert calls["reshape"] == "aten.reshape.default(%0, [2*b, 2])"
    assert calls["zeros"] == "aten.zeros.default([b+3, 2])"
    assert calls["div"] == "aten.div.Tensor(%0, truediv(b, 2))"


def test_sizes_that_depend_on_data_stay_together() -> None:
    """A tensor of unknown size has no spec, and its gradient is right."""

    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x)
        rows = (x[:, 0] > 0).nonzero()[:, 0]
        return torch.zeros_like(y).index_add(0, rows, s.b(y[rows])).pow(2).sum()

    captured = check(forward)
    assert captured.graph.op_by_name["nonzero"].output is None
    assert captured.graph.op_by_name["index_add"].output is not None


def test_a_module_in_eval_mode_is_said_to_be() -> None:
    """Captured as it is: dropout does nothing."""
    probe = Probe(lambda s, x: s.drop(s.a(x)).sum(), drop=nn.Dropout(0.5)).eval()
    captured = trace_module(probe, inputs)
    assert kinds(captured) == ["eval mode"]


def test_the_default_device_does_not_matter() -> None:
    """Captured under `torch.device("meta")`, constants of the forward still have values."""

    def forward(s: Any, x: Tensor) -> Any:
        return (s.a(x) * torch.tensor(0.5)).sum()

    torch.manual_seed(0)
    probe = Probe(forward)
    with torch.device("meta"):
        captured = trace_module(probe, inputs)
    given = inputs(5)
    eager = run_step(probe, lambda: call_model(probe, given))
    assert_same_step(run_step(probe, lambda: captured.run(given)), eager)


class Rounds(nn.Module):
    """Four rounds as long as the values are not tiny, which they never are."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rounds = 0
        while 1e-30 < x.norm() < 1e4 and rounds < 4:
            x = self.parts[rounds](x).relu() + 1
            rounds += 1
        return x


def test_branches_go_the_way_that_the_weights_send_them() -> None:
    """torch.export follows values computed from unset memory in place of parameters."""
    for seed in range(4):
        torch.manual_seed(seed)
        names = [op.name for op in trace_module(Rounds(), inputs).graph.ops]
        assert "linear_3" in names


def test_a_branch_that_was_not_followed_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the parameters' values the trace goes wrong, and does not pass its own example."""
    empty = mock.Mock(side_effect=lambda into, values: into.fill_(0.0))
    monkeypatch.setattr("graphplan.frontend.attempt._copy_values", empty)
    with pytest.raises(CaptureError, match=r"x\.norm") as caught:
        trace_module(Rounds(), inputs)
    assert "torch.where" in caught.value.remedy
    captured = check(lambda s, x: s.inner(s.a(x)).sum(), inner=Rounds())
    assert kinds(captured) == ["opaque"]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda output, batch: output.pow(2).mean(-1), "a tensor of shape [2] for a batch of two"),
        (lambda output, batch: batch[0].sum(), "a scalar that no trainable parameter changes"),
        (lambda output, batch: (output.sum(), output), "2 values"),
        (lambda output: output.sum(), "loss(output) cannot take the model's output and the batch"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused(loss: Any, said: str) -> None:
    """It used to be captured as a model without a loss, or blamed on the model's inputs."""
    with pytest.raises(CaptureError) as caught:
        trace_module(nn.Linear(4, 4), inputs, loss=loss)
    assert said in caught.value.message
    assert "output" in caught.value.remedy


def test_sizes_that_come_from_values_are_told() -> None:
    """Experts that get the samples routed to them: what they cost cannot be read off shapes."""

    def route(s: Any, x: Tensor) -> Any:
        rows = torch.where(s.a(x)[:, 0] > 0)[0]
        return torch.zeros_like(x).index_add(0, rows, s.b(x[rows])).sum() + s.a(x).sum()

    captured = check(route)
    assert kinds(captured) == ["size from values"]
    assert "estimated costs expect a part of the largest size" in captured.graph.assumptions[0].text


def conjugate(probe: Any, x: Tensor) -> Any:
    """Conjugation and negation that torch only marks: the storage stays as it is."""
    found = torch.fft.rfft(x) * torch.view_as_complex(probe.weight)
    return torch.fft.irfft(found.conj(), n=4) + found.conj().imag.sum(-1, keepdim=True)


def test_conjugation_is_no_identity() -> None:
    """It shares storage, shape and dtype with its input, and was dropped as a cast to itself is."""
    captured = check(conjugate, weight=nn.Parameter(torch.randn(3, 2)))
    assert any("conj" in op.target for op in captured.graph.ops)
