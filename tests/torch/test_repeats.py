"""Tracing once: the graph is the same as without the shortcut, whatever the blocks do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from graphplan.frontend import Captured, attempt, trace_module
from graphplan.frontend.repeats import Apart
from graphplan.frontend.unfold import _First
from tests.torch.comparing import assert_same_step, run_step

WIDTH = 8


class Block(nn.Module):
    """Two layers and a residual; `act` is what the traps change."""

    def __init__(self, index: int, act: Callable[[Block, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.index = index
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.act = act

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        h = torch.relu(self.up(self.norm(x)))
        h = self.act(self, h) if self.act is not None else h
        h = h if other is None else h * other
        return x + self.drop(self.down(h))


class Stack(nn.Module):
    """Blocks one after the other; `call` says how each is called."""

    def __init__(
        self,
        blocks: list[nn.Module],
        call: Callable[[Stack, int, Any, Tensor], Tensor] | None = None,
        end: Callable[[Stack, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks: Any = nn.ModuleList(blocks)
        self.seen: Any = []
        self.call = call
        self.end = end

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = block(x) if self.call is None else self.call(self, index, block, x)
        return (x if self.end is None else self.end(self, x)).pow(2).mean()


def stack(act: Any = None, *, call: Any = None, end: Any = None, num_blocks: int = 4) -> Stack:
    return Stack([Block(index, act) for index in range(num_blocks)], call, end)


def changed(change: Callable[[Any], object], model: Stack | None = None) -> Stack:
    model = model or stack()
    change(model.blocks)
    return model


# -- Blocks that are alike: all but those named are followed.


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.norm(self.linear(x)))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Block(0), Block(1))

    def forward(self, x: Tensor) -> Any:
        return self.parts(x) * 0.5


def _without_gradient(_: Block, h: Tensor) -> Any:
    with torch.no_grad():
        scale = h.mean()
    return h * scale


def _writes_given(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    y = block(x)
    return y.add_(x)


ALIKE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "plain": (stack, 3),
    "statistics": (lambda: Stack([Normed() for _ in range(4)]), 3),
    "nested": (lambda: Stack([Nested() for _ in range(3)]), 3),
    "a region without gradients": (lambda: stack(_without_gradient), 3),
    "writes outside": (lambda: stack(call=_writes_given), 3),
    "checkpointed": (
        lambda: stack(call=lambda m, i, b, x: checkpoint(b, x, use_reentrant=False)),
        3,
    ),
    "several inputs": (lambda: stack(call=lambda m, i, b, x: b(x, other=x.relu())), 3),
    "transformer": (lambda: Stack([_layer() for _ in range(4)]), 3),
}


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, norm_first=True)


# -- Blocks that look alike and are not.


def _shared_counter() -> Stack:
    model = stack()

    def count(_: Block, h: Tensor) -> Any:
        model.seen.append(1)
        return h * len(model.seen)

    for block in model.blocks:
        block.act = count
    return model


def _global_state() -> Stack:
    state = {"layer": 0}

    def call(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
        state["layer"] = index
        return block(x)

    return stack(lambda block, h: h * (1 + state["layer"] % 2), call=call)


def _kept_values() -> Stack:
    def keep(block: Block, h: Tensor) -> Any:
        block.kept = h
        return h

    return stack(keep, end=lambda model, x: x + sum(each.kept for each in model.blocks))


class _Returning(Stack):
    """Returns what a block has kept."""

    def forward(self, x: Tensor) -> Any:
        return {"loss": super().forward(x), "kept": self.blocks[2].kept}


def _returned_values() -> Stack:
    return _Returning(list(_kept_values().blocks))


def _collected_values() -> Stack:
    found: list[Tensor] = []

    def collect(block: Block, h: Tensor) -> Any:
        found.append(h.mean())
        return h

    return stack(collect, end=lambda model, x: x + found[-1] + found[-4])


def _cached_table() -> Stack:
    cache: list[Tensor] = []

    def look_up(block: Block, h: Tensor) -> Any:
        if not block.index:
            cache.clear()
        if not cache:
            cache.append(torch.arange(WIDTH, device=h.device).cos())
        return h * cache[0]

    return stack(look_up)


def _swallows() -> Stack:
    def act(block: Block, h: Tensor) -> Any:
        try:
            return torch.tanh(h) if block.index == 2 else torch.sigmoid(h)
        except Exception:
            return h

    return stack(act)


def _shared_buffer() -> Stack:
    model = stack(lambda block, h: h + block.seen.add_(1.0))
    buffer = torch.zeros(WIDTH)
    for block in model.blocks:
        block.register_buffer("seen", buffer)
    return model


def _flagged(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    x = x * 1.0
    if index % 2:
        x.flag = True  # type: ignore[attr-defined]
    return block(x)


def _reads_flag() -> Stack:
    model = stack(call=_flagged)
    for block in model.blocks:
        forward = block.forward

        def flagged(x: Tensor, forward: Any = forward) -> Any:
            return forward(x * 3 if hasattr(x, "flag") else x)

        block.forward = flagged
    return model


class _Doubled(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 2 if function is torch.relu else found


def _under_mode(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    if index != 2:
        return block(x)
    with _Doubled():
        return block(x)


def _under_autocast(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16, enabled=index % 2 == 1):
        return block(x)


def _frozen_below(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    with torch.set_grad_enabled(index >= 2):
        return block(x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Any:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * grads[0] * ctx.scale, None


def _square(x: Tensor, scale: float) -> Any:
    return Square.apply(x, scale)  # type: ignore[no-untyped-call]


class Swapped(nn.Module):
    """Uses its two layers in the other order when its number is odd."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        first, second = (self.one, self.two) if self.index % 2 == 0 else (self.two, self.one)
        return second(torch.relu(first(x)))


class Passing(nn.Module):
    """Returns its input beside its result, or a view of it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return (y, x if self.form == "same" else x.view(-1, 2, WIDTH // 2))


def _passed(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    y, other = block(x)
    return y.add_(other.reshape(-1, WIDTH))


class Writing(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        x.add_(1.0)
        return self.body(x)


def _write_and_read(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    x = x * 1.0
    view = x[:, :4]
    y = block(x)
    return y + torch.cat([view, view], 1)


def _same_twice(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    return block(x, x if index < 2 else x.clone())


def _whole_model(model: Stack, index: int, block: nn.Module, x: Tensor) -> Any:
    return block(x) + sum(each.norm() for each in model.parameters())


def _tie(blocks: Any) -> None:
    blocks[3].up.weight = blocks[1].up.weight


def _tie_inside(blocks: Any) -> None:
    blocks[2].down.weight = blocks[2].up.weight


def _hook_double(*given: Any) -> Any:
    return given[2] * 2


TRAPS: dict[str, Callable[[], nn.Module]] = {
    "a number of its own": lambda: stack(lambda block, h: h * (block.index + 1)),
    "two kinds in turn": lambda: stack(
        lambda block, h: [h, h.exp()][block.index % 2], num_blocks=6
    ),
    "other dropout": lambda: changed(lambda b: setattr(b[2].drop, "p", 0.3)),
    "one in eval mode": lambda: changed(lambda b: b[1].eval()),
    "one frozen": lambda: changed(lambda b: b[1].requires_grad_(False)),
    "one inner layer frozen": lambda: changed(lambda b: b[2].up.weight.requires_grad_(False)),
    "other activation": lambda: changed(
        lambda b: setattr(b[2], "act", lambda _, h: nn.functional.silu(h))
    ),
    "a closure over the number": lambda: Stack(
        [Block(0, functools.partial(lambda n, _, h: h * n, n)) for n in (1.0, 2.0, -0.0, 0.0)]
    ),
    "a hook on one": lambda: changed(lambda b: b[2].register_forward_hook(_hook_double)),
    "a hook inside of one": lambda: changed(lambda b: b[2].up.register_forward_hook(_hook_double)),
    "a pre-hook inside of one": lambda: changed(
        lambda b: b[1].down.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    ),
    "a counter": _shared_counter,
    "a state set from outside": _global_state,
    "values kept as attributes": _kept_values,
    "values kept and returned": _returned_values,
    "values collected in a list": _collected_values,
    "a table made once": _cached_table,
    "an except that takes all": _swallows,
    "a buffer that all write": _shared_buffer,
    "a flag on a tensor": _reads_flag,
    "a mode around one": lambda: stack(call=_under_mode),
    "autocast around some": lambda: stack(call=_under_autocast),
    "no gradient below": lambda: stack(call=_frozen_below),
    "weights tied between blocks": lambda: changed(_tie),
    "weights tied inside of one": lambda: changed(_tie_inside),
    "layers in another order": lambda: Stack([Swapped(index) for index in range(4)]),
    "returns its input": lambda: Stack([Passing("same") for _ in range(3)], _passed),
    "returns a view of its input": lambda: Stack([Passing("view") for _ in range(3)], _passed),
    "writes its input": lambda: Stack([Writing() for _ in range(3)], _write_and_read),
    "the same tensor twice": lambda: stack(call=_same_twice),
    "all weights of the model": lambda: stack(call=_whole_model),
    "a weight as an argument": lambda: stack(
        call=lambda m, i, b, x: b(x, m.stem.weight[0] if i % 2 else m.stem.bias)
    ),
    "a function with a backward": lambda: stack(lambda b, h: _square(h, 1.0 + b.index)),
    "a constant": lambda: stack(lambda block, h: h * torch.tensor(0.5 + block.index)),
    "a layer called again": lambda: stack(call=lambda m, i, b, x: m.blocks[0](x)),
    "a layer skipped": lambda: stack(call=lambda m, i, b, x: x if i == 2 else b(x)),
}


def inputs(batch_size: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch_size, WIDTH),)


def capture(module: nn.Module, monkeypatch: pytest.MonkeyPatch, *, once: bool) -> Captured:
    with monkeypatch.context() as patch:
        if not once:
            patch.setattr(attempt, "Apart", lambda is_off: Apart(is_off=True))
        return trace_module(module, inputs)


@pytest.mark.parametrize("name", [*ALIKE, *TRAPS])
def test_the_graph_is_the_same_as_without_the_shortcut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, wanted = ALIKE[name] if name in ALIKE else (TRAPS[name], None)
    torch.manual_seed(0)
    module = make()
    whole = capture(module, monkeypatch, once=False)
    copied: list[object] = []
    original = _First.copy_to

    def copy(*args: Any) -> Any:
        copied.append(args)
        return original(*args)

    monkeypatch.setattr(_First, "copy_to", copy)
    torch.manual_seed(0)
    # Made anew: some count their calls.
    once = capture(make(), monkeypatch, once=True)
    assert once.graph == whole.graph
    assert str(once.module.code) == str(whole.module.code)
    if wanted is not None:
        assert len(copied) == wanted


@pytest.mark.parametrize("name", ["plain", "statistics", "nested", "a layer called again"])
def test_the_captured_module_computes_what_eager_does(name: str) -> None:
    torch.manual_seed(0)
    module = ALIKE[name][0]() if name in ALIKE else TRAPS[name]()
    captured = trace_module(module, inputs)
    batch = inputs(5)
    wanted = run_step(module, lambda: module(*batch))
    assert_same_step(run_step(module, lambda: captured.run(batch)), wanted)


@given(data=st.data())
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_blocks(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that differ at random in their settings, order and hooks."""
    acts = [None, lambda _, h: h * 2, lambda _, h: h.tanh(), lambda b, h: h + b.index]
    chosen = data.draw(st.lists(st.sampled_from(range(len(acts))), min_size=2, max_size=6))
    rates = [data.draw(st.sampled_from([0.0, 0.1])) for _ in chosen]
    model = Stack([Block(index, acts[each]) for index, each in enumerate(chosen)])
    for block, rate in zip(model.blocks, rates, strict=True):
        block.drop.p = rate
    whole = capture(model, monkeypatch, once=False).graph
    assert capture(model, monkeypatch, once=True).graph == whole
