"""Draws: the random numbers that a plan's tasks draw, drawn again by a module in one process.

Under a plan every task of a stage starts from a seed of its own and draws one random op after the
other for its rows (stages/randomness.py). Here the user's module runs eagerly, on any rows, while a
dispatch mode catches its random ops below autograd, where dropout has become `bernoulli_`. The k-th
one that the eager forward calls is the k-th one that the captured graph calls; the graph knows the
stage, and each piece of that stage draws for its own rows from where it had come to:

    draw 0, stage 0, 2 micro-batches    rows 0-3 from seed(0, m=0), 4-7 from seed(0, m=1)
    draw 1, stage 1, 4 micro-batches    rows 0-1 from seed(1, m=0), 2-3 from seed(1, m=1), …
    draw 2, stage 0 again               rows 0-3 where draw 0 left off, 4-7 likewise

While the module runs, the seed of torch's generator is the number of the next draw. Activation
checkpointing puts the generator back before it runs a block again, and so repeats the draws.

What is assumed: both run the same ops in the same order (checked by kind and shape), samples lie
along one dimension (told by two shapes), and a draw takes as much of the generator whatever the
values. A draw for which this does not hold is named in `DrawnAgain.misses`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from graphplan.frontend import Captured
from graphplan.frontend.fakes import fake_like, make_fake_mode
from graphplan.frontend.leaves import ModuleCall
from graphplan.nouns.stages import StageGraph
from graphplan_runtime.drawcall import (
    Draw,
    DrawCall,
    Order,
    Sizes,
    find_orders,
    measure_sizes,
)
from graphplan_runtime.messages.parcels import Piece, Split
from graphplan_runtime.messages.rows import overlap_rows
from graphplan_runtime.stages.randomness import derive_seed


def list_draws(captured: Captured, stages: StageGraph) -> tuple[Draw, ...]:
    """The random ops of a captured graph, in the order in which the model calls them."""
    stage_by_op = {op: s for s, stage in enumerate(stages.stages) for op in stage.ops}
    graph = captured.graph
    rows = [graph.batch_size] + ([graph.batch_size + 1] if graph.batch == "dynamic" else [])
    runs = [_FakeRun(captured, stages).list_calls(size) for size in rows]
    draws = []
    for calls in zip(*runs, strict=True):
        first = calls[0]
        sizes = {size: (call.given, call.made) for size, call in zip(rows, calls, strict=True)}
        draws.append(Draw(first.kind, first.op, stage_by_op[first.op], sizes, first.orders))
    return tuple(draws)


class _Heard(NamedTuple):
    """A call of a random op on fake tensors."""

    kind: Any
    op: str
    given: Sizes
    made: Sizes
    orders: tuple[Order, ...]


class _FakeRun(fx.Interpreter):
    """Runs a graph without memory, and notes its random ops as the eager module will call them."""

    def __init__(self, captured: Captured, stages: StageGraph) -> None:
        super().__init__(captured.module)
        self.captured = captured
        self.devices = {op: stage.devices for stage in stages.stages for op in stage.ops}
        self.mode = make_fake_mode()
        self.listener = _Listener()

    def list_calls(self, num_rows: int) -> list[_Heard]:
        specs = [given.spec for given in self.captured.graph.inputs]
        with self.mode, torch.enable_grad():
            inputs = [
                torch.empty(spec.sizes(num_rows), dtype=getattr(torch, spec.dtype))
                for spec in specs
            ]
            with self.listener:
                self.run(*inputs)
        return self.listener.calls

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        """What comes from another device has travelled in a plain form."""
        here = self.devices.get(n.name)

        def fetch(given: fx.Node) -> Any:
            value, there = self.env[given], self.devices.get(given.name, here)
            travels = isinstance(value, torch.Tensor) and there != here
            return value.contiguous() if travels else value

        return fx.map_arg(n.args, fetch), fx.map_arg(n.kwargs, fetch)

    def run_node(self, n: fx.Node) -> Any:
        self.listener.op = n.name
        return super().run_node(n)

    def fetch_attr(self, target: str) -> Any:
        held = operator.attrgetter(target)(self.module)
        return fake_like(held, self.mode) if isinstance(held, torch.Tensor) else held

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, ModuleCall):  # Cannot run here; what it draws will not fit.
            return target.fake_results(args[: target.template.num_tensors])
        return super().call_function(target, args, kwargs)


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op = ""
        self.calls: list[_Heard] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_draw(func, kwargs or {}):
            given = (args, kwargs or {})
            sizes = measure_sizes(given), measure_sizes(result)
            self.calls.append(_Heard(func, self.op, *sizes, find_orders(given)))
        return result


def is_draw(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws from the default generator."""
    tagged = torch.Tag.nondeterministic_seeded in func.tags
    return tagged and kwargs.get("generator") is None


class DrawnAgain(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, random ops of the eager module draw what the tasks of a plan draw."""

    def __init__(
        self, draws: Sequence[Draw], split: Split, rows: range, *, seed: int, step: int
    ) -> None:
        """`rows` are the samples that the module is given, of those of the split batch."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws
        self.split = split
        self.rows = rows
        self.seed = seed
        self.step = step
        self.misses: dict[str, str] = {}
        """By op of the graph, why what it drew is not what the tasks drew."""
        self._held = torch.get_rng_state()
        self._reached: dict[Piece, torch.Tensor] = {}
        """The generator of each piece after its last draw."""
        self._before: dict[tuple[Piece, int], torch.Tensor] = {}
        """And before each draw, for blocks that are run again."""

    def __enter__(self) -> DrawnAgain:
        self._held = torch.get_rng_state()
        torch.manual_seed(0)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        torch.set_rng_state(self._held)

    def check_end(self) -> None:
        """The forward has ended: all draws of the graph should have been made."""
        if torch.initial_seed() != len(self.draws) and not self.misses:
            rest = self.draws[min(torch.initial_seed(), len(self.draws) - 1)]
            self.misses[rest.op] = "the module draws less often in one process"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_draw(func, kwargs):
            return func(*args, **kwargs)
        number = torch.initial_seed()
        try:
            return self._draw(number, func, args, kwargs)
        finally:
            torch.manual_seed(number + 1)

    def _draw(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        if number >= len(self.draws) or self.draws[number].kind is not func:
            op = self.draws[min(number, len(self.draws) - 1)].op
            self.misses.setdefault(op, f"the module calls {func} there in one process")
            return func(*args, **kwargs)
        draw = self.draws[number]
        call = DrawCall.fit(draw, func, args, kwargs, num_rows=len(self.rows))
        pieces = self._find_pieces(draw.stage)
        reason = call.explain_miss(self.rows, pieces)
        if reason is not None:
            self.misses.setdefault(draw.op, reason)
        if reason is not None or (len(pieces) == 1 and call.is_whole(self.rows, pieces[0])):
            return self._place(pieces[0], number, lambda: func(*args, **kwargs))
        made = [
            self._place(piece, number, lambda piece=piece: call.run(self.rows, piece.rows))
            for piece in pieces
        ]
        return call.join(made)

    def _find_pieces(self, stage: int) -> list[Piece]:
        """The pieces of a stage that hold some of the rows."""
        return [
            piece
            for m in range(self.split.counts[stage])
            for piece in self.split.pieces(stage, m)
            if overlap_rows(piece.rows, self.rows)
        ]

    def _place(self, piece: Piece, number: int, run: Any) -> Any:
        """Run with the generator of a piece."""
        before = self._before.get((piece, number))
        is_again = before is not None
        if before is None:
            before = self._reached.get(piece)
        if before is None:
            torch.manual_seed(
                derive_seed(self.seed, self.step, piece.stage, piece.micro_batch, piece.rows.start)
            )
            before = torch.get_rng_state()
        torch.set_rng_state(before)
        self._before[piece, number] = before
        result = run()
        if not is_again:
            self._reached[piece] = torch.get_rng_state()
        return result
