"""Fallback: the ways to trace a model, the best first.

1. torch.export on fake tensors: nothing is allocated, any batch size.
2. The same on a small real example: a branch on values goes the way that the example goes. Every
   such decision is an Assumption of the graph. Where even that fails, the sub-module in which it
   fails becomes one opaque op.
3. As 2 without following values: opaque ops only, on fake tensors.
4. An error that names the user's line.

Each way tries to serve any batch size first, see `batched`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch import nn

from graphplan.frontend.attempt import (
    Attempt,
    AttemptFailed,
    kept_state,
    quiet_torch,
    trace_fake,
    trace_values,
)
from graphplan.frontend.batched import Resize, Traced, trace_batched
from graphplan.frontend.example import Example, Inputs, fix_batch, make_example
from graphplan.frontend.failure import describe_failure, describe_users_error, explain_failure
from graphplan.frontend.fakes import is_real, make_fake_mode
from graphplan.frontend.leaves import Leaf, LeafCall, noted_calls
from graphplan.frontend.withloss import Loss, WithLoss

PLAIN = "torch.export"
FOLLOWS = f"{PLAIN} following an example's values"
_MOST_LEAVES = 32


@dataclass(frozen=True)
class Subject:
    """What is to be traced; `rebuild` makes a real module when `module` has no memory."""

    module: nn.Module
    inputs: Inputs
    loss: Loss | None
    batch_size: int
    rebuild: Callable[[], nn.Module] | None = None
    has_fixed_batch: bool = False


def trace_subject(subject: Subject) -> Traced:
    """Trace by the first way that works; raises CaptureError when none does."""
    example = _make_fake_example(subject)
    module = _wrap(subject, subject.module, example)
    try:
        return trace_batched(
            lambda given: trace_fake(module, given),
            module,
            example,
            resize=_resizer(subject, fake=True),
            method=PLAIN,
        )
    except AttemptFailed as failure:
        return _trace_real(subject, failure)


def _make_fake_example(subject: Subject) -> Example:
    """The inputs without memory; for real when the user's function cannot run so."""
    try:
        with make_fake_mode(), quiet_torch():
            return _make_example(subject)
    except Exception:
        return _make_example(subject)


def _make_example(subject: Subject) -> Example:
    example = make_example(subject.inputs, batch_size=subject.batch_size)
    return fix_batch(example) if subject.has_fixed_batch else example


def _wrap(subject: Subject, module: nn.Module, example: Example) -> nn.Module:
    return module if subject.loss is None else WithLoss(module, subject.loss, example)


def _resizer(subject: Subject, *, fake: bool) -> Resize | None:
    """Examples of other batch sizes, where the user's function makes them."""
    if not callable(subject.inputs) or subject.has_fixed_batch:
        return None

    def resize(batch_size: int) -> Example:
        other = replace(subject, batch_size=batch_size)
        return _make_fake_example(other) if fake else _make_example(other)

    return resize


def _trace_real(subject: Subject, failure: AttemptFailed) -> Traced:
    real = subject.module
    if not is_real(real):
        if subject.rebuild is None:
            raise describe_failure(failure) from failure.__cause__
        real = subject.rebuild()
    example = _make_example(subject)
    module = _wrap(subject, real, example)
    _check_runs(module, example)
    try:
        return _trace_leaves(subject, module, example, trace_values, method=FOLLOWS)
    except AttemptFailed as followed:
        try:
            return _trace_leaves(subject, module, example, trace_fake, method=PLAIN)
        except AttemptFailed:
            raise describe_failure(followed) from followed.__cause__


def _check_runs(module: nn.Module, example: Example) -> None:
    """What fails without any tracing is the user's error."""
    try:
        with kept_state(module), quiet_torch():
            module(*example.args, **example.kwargs)
    except Exception as error:
        raise describe_users_error(error, module) from error


class _TraceWith(Protocol):
    """`trace_values` or `trace_fake`."""

    def __call__(
        self, module: nn.Module, example: Example, *, leaves: Mapping[nn.Module, Leaf]
    ) -> Attempt: ...


def _trace_leaves(
    subject: Subject, module: nn.Module, example: Example, trace: _TraceWith, *, method: str
) -> Traced:
    """Trace; where that fails inside a sub-module, make that one opaque and try again."""
    leaves: dict[nn.Module, Leaf] = {}
    top = module.model if isinstance(module, WithLoss) else module
    inside = set(module.modules()) - {module, top}
    while True:
        try:
            return trace_batched(
                lambda given: trace(module, given, leaves=leaves),
                module,
                example,
                resize=_resizer(subject, fake=False),
                method=f"{method} with opaque sub-modules" if leaves else method,
            )
        except AttemptFailed as failure:
            inner = [each for each in failure.watch.modules if each in inside - leaves.keys()]
            if not inner or len(leaves) == _MOST_LEAVES:
                raise
            calls = _note_calls(subject, module, inner[-1], example)
            leaves[inner[-1]] = Leaf(calls, *explain_failure(failure))


def _note_calls(
    subject: Subject, module: nn.Module, leaf: nn.Module, example: Example
) -> dict[int, list[LeafCall]]:
    """Real runs that tell what a leaf returns."""
    noted = {}
    sizes = [example.batch_size]
    if example.batch == "dynamic" and callable(subject.inputs):
        sizes.append(example.batch_size + 1)
    for size in sizes:
        given = make_example(subject.inputs, batch_size=size)
        with kept_state(module), quiet_torch(), noted_calls(leaf) as calls:
            module(*given.args, **given.kwargs)
        noted[size] = calls
    return noted
