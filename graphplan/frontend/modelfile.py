"""Model files: a Python file with `build` and `inputs`, or a saved `.pt2`.

    build(**settings) -> nn.Module            required; `model.py:name` picks another builder
    inputs(batch_size) -> tuple or dict       required; arguments of the model, and of the loss
    loss(output, batch) -> scalar             optional; or a dict of them, which are added
    optimizer(parameters) -> Optimizer        optional
    data(batch_size) -> iterable of batches   optional; `data()` when it knows the size itself

A setting (`--set layers=2`) goes to every function of the file that has a parameter of that name.
Errors in the user's code become ModelFileError with the user's line.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from graphplan.errors import GraphplanError, ModelFileError
from graphplan.frontend.example import Batch, Inputs
from graphplan.frontend.places import place_of_error
from graphplan.frontend.withloss import Loss

T = TypeVar("T")

SMALLEST = """\
The smallest right file:
      import torch
      def build():
          return torch.nn.Linear(16, 16)
      def inputs(batch_size):
          return (torch.randn(batch_size, 16),)"""


@dataclass(frozen=True)
class ModelFile:
    """What a model file offers; the settings are filled in."""

    path: Path
    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    """A function of the batch size; for a `.pt2` of fixed sizes the batch it was saved with."""
    loss: Loss | None = None
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None
    data: Callable[[int], Iterable[Batch]] | None = None
    """Called with the batch size."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    has_fixed_batch: bool = False
    """Whether numbers that depend on the batch size may be built into the model."""


def load_model_file(model: str | Path, *, settings: Mapping[str, Any] | None = None) -> ModelFile:
    """Load `model.py`, `model.py:builder` or `model.pt2`; nothing is built yet."""
    text = str(model)
    name, _, builder = text.partition(":") if ".py:" in text else (text, "", "")
    path = Path(name)
    if not path.is_file():
        raise ModelFileError(
            f"{path} is {'a folder' if path.is_dir() else 'not a file'}.",
            remedy="Give a model file (model.py, model.py:builder) or a saved .pt2.",
        )
    if path.suffix == ".pt2":
        from graphplan.frontend.pt2 import load_saved_program

        return load_saved_program(path, settings=settings or {})
    if path.suffix != ".py":
        raise ModelFileError(
            f"{path} is neither a .py nor a .pt2 file.", remedy=f"Give a model file. {SMALLEST}"
        )
    return _load_python(path, builder or "build", settings or {})


def _load_python(path: Path, builder: str, settings: Mapping[str, Any]) -> ModelFile:
    module = _import_file(path)
    functions = {
        name: getattr(module, name, None)
        for name in (builder, "inputs", "loss", "optimizer", "data")
    }
    for name in (builder, "inputs"):
        if not callable(functions[name]):
            raise _missing_function(path, name, module)
    _check_settings(path, functions, settings)

    def bind(name: str) -> Callable[..., Any] | None:
        function = functions[name]
        return _bind_settings(path, name, function, settings) if callable(function) else None

    build, inputs = bind(builder), bind("inputs")
    assert build is not None and inputs is not None
    return ModelFile(
        path=path,
        name=path.stem if builder == "build" else f"{path.stem}:{builder}",
        build=functools.partial(_build_module, path, builder, build),
        inputs=inputs,
        loss=functions["loss"],
        optimizer=bind("optimizer"),
        data=_take_batch_size(bind("data")),
        settings=dict(settings),
    )


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module of its own, with its folder on the path as for a script."""
    name = f"graphplan_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    guarded(path, "The file", spec.loader.exec_module)(module)
    return module


def guarded(path: Path, what: str, function: Callable[..., T]) -> Callable[..., T]:
    """The same function; what it raises becomes a ModelFileError with the user's line."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        try:
            return function(*args, **kwargs)
        except GraphplanError:
            raise
        except Exception as error:
            place = place_of_error(error) or str(path)
            if isinstance(error, SyntaxError):
                place = f"{error.filename}:{error.lineno}"
            raise ModelFileError(
                f"{place}: {what} raised {type(error).__name__}: {error}",
                remedy=_remedy_of(error),
            ) from error

    return call


def _remedy_of(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        how = f"it (pip install {package})" if package else "what this line needs"
        return f"Install {how}, or run where the model runs."
    return "Mend this line; --debug shows the whole traceback."


def _missing_function(path: Path, name: str, module: ModuleType) -> ModelFileError:
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    close = difflib.get_close_matches(name, functions, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ModelFileError(f"{path} has no function {name!r}.{hint}", remedy=SMALLEST)


def _check_settings(path: Path, functions: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    known: list[str] = []
    for name, function in functions.items():
        if callable(function) and name != "loss":
            parameters = inspect.signature(function).parameters
            if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                return
            known += list(parameters)
    known = sorted(set(known) - {"batch_size", "parameters", "params"})
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise ModelFileError(
                f"{path} has no setting {key!r}.",
                remedy=f"{hint}Its settings: {', '.join(known) or 'none'}.",
            )


def _bind_settings(
    path: Path, name: str, function: Callable[..., Any], settings: Mapping[str, Any]
) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    own = {key: value for key, value in settings.items() if takes_all or key in parameters}
    return guarded(path, f"{name}()", functools.partial(function, **own))


def _take_batch_size(data: Callable[..., Any] | None) -> Callable[[int], Any] | None:
    """The data with its size, whatever the file calls it; without one it knows the size itself."""
    if data is None:
        return None
    parameters = inspect.signature(data).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p for p in parameters.values() if p.default is p.empty and p.kind in kinds]
    return data if wanted or "batch_size" in parameters else lambda batch_size: data()


def _build_module(path: Path, builder: str, build: Callable[[], Any]) -> nn.Module:
    module = build()
    if not isinstance(module, nn.Module):
        raise ModelFileError(
            f"{path}: {builder}() returned {type(module).__name__}, not a torch.nn.Module.",
            remedy=SMALLEST,
        )
    return module
