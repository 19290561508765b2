"""Initialisation: the first values of some weights of a model, without memory for all of them.

`build()` runs once on fake tensors while every op that it calls is written down. Then the ops are
run again for real, but only those that the wanted weights depend on. Random ops that do not matter
are run on scratch memory, one at a time, because they move the generator on: the values are exactly
those of a model that was really built with the same seed. With `exact=False` they are left out and
every random op has a seed of its own: much faster for one stage of a large model, still independent
of how the model is cut, but other values than `build()` gives.

(The idea of replaying a recorded construction is that of torchdistx's deferred initialisation.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from graphplan.frontend import ModelFile
from graphplan.frontend.fakes import make_fake_mode, tensor_slots
from graphplan_runtime.stages.randomness import derive_seed


def initialize_weights(
    model_file: ModelFile, names: Collection[str], *, seed: int, exact: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors called `names` of a freshly built model; missing ones are left out."""
    try:
        recording = _record_build(model_file, seed)
    except Exception:
        # build() reads values, or does what fake tensors cannot: build it for real.
        return _build_whole(model_file, names, seed)
    wanted = {name: tensor for name, tensor in recording.slots.items() if name in names}
    return _replay(recording, wanted, seed=seed, exact=exact)


def _build_whole(
    model_file: ModelFile, names: Collection[str], seed: int
) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        slots = list_weights(model_file.build())
    return {name: tensor for name, tensor in slots.items() if name in names}


def list_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and plain tensor attributes of a module by name."""
    return {name: tensor for name, _, _, tensor in tensor_slots(module)}


@dataclasses.dataclass(frozen=True)
class _Call:
    """One op that build() called, on fake tensors."""

    function: Any
    args: Any
    kwargs: Any
    result: Any

    @property
    def is_random(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.function.tags

    def read(self) -> list[torch.Tensor]:
        return _tensors((self.args, self.kwargs))

    def written(self) -> list[torch.Tensor]:
        """Results, and arguments that the op changes."""
        changed = [
            value
            for argument, value in zip(self.function._schema.arguments, self.args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return _tensors((self.result, changed))


@dataclasses.dataclass(frozen=True)
class _Recording:
    calls: list[_Call]
    slots: dict[str, torch.Tensor]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, kwargs or {}, result))
        return result


def _record_build(model_file: ModelFile, seed: int) -> _Recording:
    recorder = _Recorder()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with make_fake_mode(), recorder:
            module = model_file.build()
    return _Recording(recorder.calls, list_weights(module))


def _replay(
    recording: _Recording, wanted: dict[str, torch.Tensor], *, seed: int, exact: bool
) -> dict[str, torch.Tensor]:
    """Run the calls that the wanted tensors depend on, and collect them."""
    needed = _find_needed(recording.calls, wanted.values())
    real: dict[int, torch.Tensor] = {}
    """By storage of the fake tensor: a real tensor over the whole storage."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for number, call in enumerate(recording.calls):
            if number in needed:
                if call.is_random and not exact:
                    torch.manual_seed(derive_seed(seed, "init", number))
                _run(call, real)
            elif call.is_random and exact:
                _draw(call)
    found = {}
    for name, fake in wanted.items():
        tensor = _look_up(fake, real)
        if isinstance(fake, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=fake.requires_grad)
        found[name] = tensor
    return found


def _find_needed(calls: list[_Call], wanted: Collection[torch.Tensor]) -> set[int]:
    """Numbers of the calls that write memory which the wanted tensors depend on."""
    storages = {_storage(tensor) for tensor in wanted}
    needed = set()
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        if not storages.isdisjoint(map(_storage, call.written())):
            needed.add(number)
            storages.update(map(_storage, call.read()))
    return needed


def _run(call: _Call, real: dict[int, torch.Tensor]) -> None:
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda fake: _look_up(fake, real), (call.args, call.kwargs)
    )
    result = call.function(*args, **kwargs)
    for fake, made in zip(_tensors(call.result), _tensors(result), strict=True):
        real.setdefault(_storage(fake), made)


def _draw(call: _Call) -> None:
    """Move the generator on as the call would."""

    def scratch(fake: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype).fill_(0)

    args, kwargs = pytree.tree_map_only(torch.Tensor, scratch, (call.args, call.kwargs))
    call.function(*args, **kwargs)


def _look_up(fake: torch.Tensor, real: dict[int, torch.Tensor]) -> torch.Tensor:
    """The real tensor of a fake one; tensors that were real from the start are themselves."""
    base = real.get(_storage(fake))
    if base is None:
        assert not isinstance(fake, torch._subclasses.FakeTensor), "every op was recorded"
        return fake
    if base.dtype != fake.dtype:
        base = base.view(fake.dtype)
    return base.as_strided(fake.shape, fake.stride(), fake.storage_offset())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, torch.Tensor)]
