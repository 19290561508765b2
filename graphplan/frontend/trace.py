"""Tracing: a PyTorch module becomes an OpGraph and the fx module that runs it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphplan.errors import CaptureError
from graphplan.frontend.batched import Traced
from graphplan.frontend.build import build_module, build_real_module
from graphplan.frontend.captured import Captured
from graphplan.frontend.example import Inputs, input_paths
from graphplan.frontend.fakes import on_cpu
from graphplan.frontend.fallback import Subject, trace_subject
from graphplan.frontend.lower import lower_ops
from graphplan.frontend.mixing import find_mixing
from graphplan.frontend.modelfile import ModelFile
from graphplan.frontend.observe import Run, observe_graph
from graphplan.frontend.scalars import depends_on_data
from graphplan.frontend.weights import attach_weights
from graphplan.frontend.withloss import Loss, WithLoss
from graphplan.nouns.names import MAX_TARGET, escape_hidden, fit_text
from graphplan.nouns.opgraph import Assumption, Input, OpGraph


def trace_module(
    module: nn.Module,
    inputs: Inputs,
    *,
    loss: Loss | None = None,
    name: str | None = None,
    batch_size: int = 2,
) -> Captured:
    """Capture the training forward of a module, with its loss when one is given.

    `inputs` is a function of the batch size that returns a tuple of positional or a dict of keyword
    arguments, or one such batch. `batch_size` is that of the example; it matters only where the
    batch size turns out to be fixed.
    """
    subject = Subject(module=module, inputs=inputs, loss=loss, batch_size=batch_size)
    with on_cpu():
        return build_captured(trace_subject(subject), name=name or type(module).__name__)


def trace_model_file(model_file: ModelFile, *, batch_size: int = 2) -> Captured:
    """Capture what a model file builds; the weights get no memory unless the model insists."""
    with on_cpu():
        module = build_module(model_file)
        subject = Subject(
            module=module,
            inputs=model_file.inputs,
            loss=model_file.loss,
            batch_size=batch_size,
            rebuild=functools.partial(build_real_module, model_file, module),
            has_fixed_batch=model_file.has_fixed_batch,
        )
        return build_captured(trace_subject(subject), name=model_file.name, keep_weights=False)


def build_captured(traced: Traced, *, name: str, keep_weights: bool = True) -> Captured:
    """Lower a trace; its weights are the module's own, or meta tensors."""
    body, weights = attach_weights(traced, keep=keep_weights)
    example = traced.example
    batch_sizes = [example.batch_size]
    if example.batch == "dynamic":
        batch_sizes.append(example.batch_size + 1)
    runs = [(size, observe_graph(body, traced.specs, batch_size=size)) for size in batch_sizes]
    flat = body.graph.output_node().args[0]
    assert isinstance(flat, (tuple, list))
    loss = _find_loss(flat, traced.attempt.output_tree, runs[0][1])
    if loss is None and isinstance(traced.module, WithLoss):
        raise _refuse_loss(flat, runs[0][1])
    ops = lower_ops(body.graph, runs, loss=loss)
    graph = OpGraph(
        name=escape_hidden(name),
        batch=example.batch,
        batch_size=example.batch_size,
        inputs=_list_inputs(traced),
        weights=weights,
        ops=ops,
        outputs=tuple(leaf.name for leaf in flat if isinstance(leaf, fx.Node)),
        output_tree=escape_hidden(str(traced.attempt.output_tree)),
        loss=loss.name if loss is not None else None,
        assumptions=tuple(map(_tidy, (*traced.assumptions, *_list_unsized(runs[0][1])))),
        mixing=find_mixing(body.graph, {op.name: op for op in ops}, traced.specs, loss=loss),
        capture=f"{traced.method}, torch {torch.__version__}",
    )
    input_tree = pytree.tree_structure((example.args, example.kwargs))
    return Captured(graph, body, input_tree, traced.attempt.output_tree)


def _list_inputs(traced: Traced) -> tuple[Input, ...]:
    arguments = (traced.example.args, traced.example.kwargs)
    paths = input_paths(arguments, traced.module.forward)
    pairs = zip(traced.specs.items(), paths, strict=True)
    return tuple(
        Input(name=name, path=fit_text(path, most=MAX_TARGET), spec=spec)
        for (name, spec), path in pairs
    )


def _tidy(each: Assumption) -> Assumption:
    """The same with nothing that steers a terminal: it quotes the user's code and paths."""
    source = escape_hidden(each.source) if each.source is not None else None
    return Assumption(kind=each.kind, text=escape_hidden(each.text), source=source)


def _find_loss(flat: Sequence[Any], tree: pytree.TreeSpec, run: Run) -> fx.Node | None:
    """The scalar that is differentiated: the only output, or the one called `loss`."""
    result = pytree.tree_unflatten(list(flat), tree)
    if isinstance(result, Mapping):
        result = result.get("loss")
    if not isinstance(result, fx.Node):
        return None
    value = run[result].value
    is_loss = isinstance(value, torch.Tensor) and value.dim() == 0 and value.requires_grad
    return result if is_loss else None


def _refuse_loss(flat: Sequence[Any], run: Run) -> CaptureError:
    """The error for a loss() whose result cannot be differentiated."""
    values = [run[leaf].value if isinstance(leaf, fx.Node) else leaf for leaf in flat]
    if len(values) == 1 and isinstance(values[0], torch.Tensor):
        what = "a scalar that no trainable parameter changes"
        if values[0].dim():
            what = f"a tensor of shape {list(values[0].shape)} for a batch of two"
    else:
        what = f"{len(values)} values"
    return CaptureError(
        f"loss(output, batch) returned {what}.",
        remedy="Return one scalar that depends on the output, e.g. `return errors.mean()`.",
    )


def _list_unsized(run: Run) -> Iterator[Assumption]:
    """Results whose size no shape tells, so that an estimate cannot price the ops around them."""
    unsized = [
        node
        for node, seen in run.items()
        if isinstance(seen.value, torch.Tensor) and depends_on_data(seen.value)
    ]
    if unsized:
        yield Assumption(
            kind="size from values",
            text=f"{len(unsized)} ops, the first {unsized[0].name!r}, give tensors whose size"
            " depends on values: estimated costs expect a part of the largest size, and no stage"
            " ends between them and what reads them",
        )
