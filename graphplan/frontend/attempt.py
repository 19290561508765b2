"""Attempts: one call of torch.export on a module, on fake tensors or following real ones."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
from torch import fx, nn
from torch._subclasses import meta_utils
from torch.export import Dim, ShapesCollection
from torch.utils import _pytree as pytree

from graphplan.errors import CaptureError
from graphplan.frontend.example import Example, flat_tensors
from graphplan.frontend.fakes import (
    fake_batch,
    faked_module,
    kept_attributes,
    make_fake_mode,
)
from graphplan.frontend.leaves import Leaf, opaque_leaves
from graphplan.frontend.opaque import restore_opaque
from graphplan.frontend.recorded import NotRepeated
from graphplan.frontend.repeats import Apart, traced_once
from graphplan.frontend.watch import Watch, watched_trace


@dataclass(frozen=True)
class Attempt:
    """A trace that came through."""

    body: fx.GraphModule
    """Takes the tensors of the example, reads weights by `get_attr`."""
    output_tree: pytree.TreeSpec
    watch: Watch


class AttemptFailed(Exception):
    """A trace that did not; `__cause__` is what torch raised."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch


def trace_fake(
    module: nn.Module, example: Example, *, leaves: Mapping[nn.Module, Leaf] | None = None
) -> Attempt:
    """Trace without memory: module and batch are fake while it lasts."""
    apart = Apart(is_off=bool(leaves))
    while True:
        mode = make_fake_mode()
        args, kwargs = fake_batch((example.args, example.kwargs), mode)
        with faked_module(module, mode), opaque_leaves(leaves or {}):
            try:
                with traced_once(module, apart):
                    return _trace(module, example, args, kwargs)
            except NotRepeated:
                continue
            except AttemptFailed:
                if not apart.has_followed:
                    raise
                # It may fail for the shortcut's sake: a stand-in among the outputs, say.
                apart.is_off, apart.has_followed = True, False


def trace_values(
    module: nn.Module, example: Example, *, leaves: Mapping[nn.Module, Leaf] | None = None
) -> Attempt:
    """Trace a real module on a real batch; branches go the way that the values go.

    This is how torch.export.draft_export follows values. It is called directly because
    draft_export records every symbol besides, which takes ten times as long.
    """
    patch = torch._functorch.config.patch(
        fake_tensor_propagate_real_tensors=True, generate_fake_kernels_from_real_mismatches=True
    )
    copied = mock.patch.object(meta_utils, "_safe_copy", _copy_values)
    with kept_state(module), patch, copied, opaque_leaves(leaves or {}):
        attempt = _trace(module, example, example.args, example.kwargs)
    refusal = _find_wrong_turn(module, example, attempt)
    if refusal is None:
        return attempt
    attempt.watch.modules[:] = attempt.watch.decisions[-1].modules
    raise AttemptFailed(attempt.watch) from refusal


def _copy_values(into: torch.Tensor, values: torch.Tensor | None) -> None:
    """Copy parameters too: torch 2.13 skips all but plain tensors and follows unset memory."""
    if values is not None and type(values) in (torch.Tensor, nn.Parameter):
        into.copy_(values)


def _find_wrong_turn(module: nn.Module, example: Example, attempt: Attempt) -> CaptureError | None:
    """Run the trace on its own example: its assertions say whether the branches went that way.

    A branch on a random draw may go either way.
    """
    decisions = attempt.watch.decisions
    if not decisions or any(each.is_random for each in decisions):
        return None
    try:
        with kept_state(module), quiet_torch(), torch.no_grad():
            attempt.body(*example.args, **example.kwargs)
    except Exception as error:
        last = decisions[-1]
        return CaptureError(
            f"{last.place or 'the model'}: torch.export took another way at `{last.code}` than the"
            f" values of the example go ({str(error).splitlines()[0]}).",
            remedy="Use torch.where instead of `if`, a loop of fixed length, or move this code into"
            " a sub-module of its own: it is then kept as one op.",
        )
    return None


def _trace(
    module: nn.Module, example: Example, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Attempt:
    with watched_trace() as watch, quiet_torch(), _united_batch(module, example):
        try:
            program = torch.export.export(
                module,
                args,
                kwargs,
                strict=False,
                dynamic_shapes=_mark_batch(example, args, kwargs),
            )
            body = program.module(check_guards=False)
        except Exception as error:
            raise AttemptFailed(watch) from error
        assert isinstance(body, fx.GraphModule)
        for part in body.modules():
            if isinstance(part, fx.GraphModule):
                restore_opaque(part.graph)
    return Attempt(body=body, output_tree=program.call_spec.out_spec, watch=watch)


def _mark_batch(example: Example, args: object, kwargs: object) -> Any:
    if example.batch != "dynamic":
        return None
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor, spec in zip(flat_tensors((args, kwargs)), example.specs, strict=True):
        if spec.has_batch:
            dims = enumerate(spec.shape)
            shapes[tensor] = {index: Dim.AUTO for index, dim in dims if isinstance(dim, str)}
    return shapes


@contextlib.contextmanager
def _united_batch(module: nn.Module, example: Example) -> Iterator[None]:
    """While it lasts, a trace begins with what `inputs` says: sizes that grow alike are the same.

    torch.export gives each dimension a symbol of its own, and finds this out only where the inputs
    meet; until then two towers of a model would be traced as if their batches could differ.
    """

    def unite(module: nn.Module, args: Any, kwargs: Any) -> None:
        first: dict[str, Any] = {}
        given = flat_tensors((args, {key: kwargs[key] for key in example.kwargs}))
        for tensor, spec in zip(given, example.specs, strict=True):
            for index, dim in enumerate(spec.shape):
                if isinstance(dim, str):
                    size = tensor.shape[index]
                    assert first.setdefault(dim, size) == size

    handle = module.register_forward_pre_hook(unite, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence torch's remarks; restore the gradient mode, which a failed trace leaves off."""
    grad = torch.is_grad_enabled()
    disabled = logging.root.manager.disable
    try:
        sink = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            torch.set_grad_enabled(True)
            yield
    finally:
        logging.disable(disabled)
        torch.set_grad_enabled(grad)


@contextlib.contextmanager
def kept_state(module: nn.Module) -> Iterator[None]:
    """Real runs leave no trace: buffers and the random state are as before, draws are the same
    each time."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), kept_attributes(module):
        torch.manual_seed(0)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])
