"""Saved programs: a `.pt2` file of torch.export in place of a model file, and code as that is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from graphplan.errors import ModelFileError
from graphplan.frontend.dynamic import tensor_placeholders
from graphplan.frontend.example import Arguments, Inputs
from graphplan.frontend.modelfile import ModelFile
from graphplan.frontend.nodes import fake_value
from graphplan.frontend.pt2check import check_program


def load_saved_program(path: Path, *, settings: Mapping[str, Any]) -> ModelFile:
    """A model file whose `build` gives the saved module, whose inputs have the saved shapes."""
    if settings:
        raise ModelFileError(
            f"{path} is a saved program and has no settings, but {sorted(settings)} were given.",
            remedy="Leave --set out, or give the model file it was saved from.",
        )
    check_program(path)
    program = _load(path)
    body = program.module(check_guards=False)
    assert isinstance(body, fx.GraphModule)
    inputs = _find_inputs(path, program, body)
    return ModelFile(
        path=path,
        name=path.stem,
        build=functools.partial(_retie_weights, body),
        inputs=inputs,
        has_fixed_batch=isinstance(inputs, Arguments),
    )


def _load(path: Path) -> ExportedProgram:
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ModelFileError(
            f"{path} cannot be loaded as a saved program: {type(error).__name__}: {error}",
            remedy=f"Save it with torch.export.save(torch.export.export(...), {path.name!r}) and"
            f" torch {torch.__version__}.",
        ) from error


def _retie_weights(body: fx.GraphModule) -> nn.Module:
    """Tied weights come back from a file as two parameters on one memory: make them one again."""
    first: dict[tuple[Any, ...], nn.Parameter] = {}
    for name, parameter in list(body.named_parameters(remove_duplicate=False)):
        place = (parameter.data_ptr(), tuple(parameter.shape), parameter.stride())
        kept = first.setdefault(place, parameter)
        if kept is not parameter and parameter.numel():
            path, _, key = name.rpartition(".")
            setattr(body.get_submodule(path), key, kept)
    return body


def _find_inputs(path: Path, program: ExportedProgram, body: fx.GraphModule) -> Inputs:
    """The saved example; with a symbolic batch, a function that makes batches of any size."""
    if program.example_inputs is None:
        raise ModelFileError(
            f"{path} was saved without example inputs.",
            remedy="Export the model again with torch.export.export(model, inputs) and save that.",
        )
    arguments = Arguments(*program.example_inputs)
    nodes = tensor_placeholders(body.graph)
    leading = [node for node in nodes if fake_value(node).dim() and _symbol(node, 0) is not None]
    if not leading:
        return arguments
    batch = _symbol(leading[0], 0)

    def inputs(batch_size: int) -> Arguments:
        sizes = {
            index: [
                batch_size if _symbol(node, dim) == batch else size
                for dim, size in enumerate(tensor.shape)
            ]
            for index, (node, tensor) in enumerate(zip(nodes, arguments.tensors, strict=True))
        }
        made = [
            torch.zeros(sizes[index], dtype=tensor.dtype)
            for index, tensor in enumerate(arguments.tensors)
        ]
        return arguments.with_tensors(made)

    return inputs


def _symbol(node: fx.Node, dim: int) -> Any:
    """The symbol of a dimension, None when it is a number or an expression."""
    size = fake_value(node).shape[dim]
    expression = size.node.expr if isinstance(size, torch.SymInt) else None
    return expression if getattr(expression, "is_symbol", False) else None
