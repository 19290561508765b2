"""Snapshot: between the live objects of a rank and what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphplan.errors import InvalidOption
from graphplan_runtime.checkpoints.checkpoint import OPTIMIZER, GroupOptions, Manifest, Option
from graphplan_runtime.updates.update import Updater

_SCALARS = (bool, int, float, str)


def name_state(parameter: str, key: str) -> str:
    """The name of an optimizer's tensor for a parameter."""
    return f"{OPTIMIZER}/{key}/{parameter}"


def list_tensors(
    weights: Mapping[str, torch.Tensor], updater: Updater, *, rank: int
) -> dict[str, torch.Tensor]:
    """The weights for which this rank answers, and the optimizer's tensors for them."""
    owner_of = updater.holdings.owner_of
    found = {name: tensor for name, tensor in weights.items() if owner_of(name) == rank}
    for optimizer, name, parameter in _list_parameters(updater):
        if owner_of(name) == rank:
            for key, value in optimizer.state.get(parameter, {}).items():
                found[name_state(name, key)] = torch.as_tensor(value)
    return found


def list_groups(updater: Updater, *, rank: int) -> tuple[GroupOptions, ...]:
    """Options of the parameters for which this rank answers."""
    found = []
    names = {id(p): n for named in updater.parameters.values() for n, p in named.items()}
    for optimizer in updater.optimizers.values():
        for group in optimizer.param_groups:
            own = [names[id(parameter)] for parameter in group["params"]]
            own = [name for name in own if updater.holdings.owner_of(name) == rank]
            if own:
                found.append(GroupOptions(parameters=tuple(own), options=_plain_options(group)))
    return tuple(found)


def _plain_options(group: Mapping[str, Any]) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, torch.Tensor):
            found[key] = float(value)
        elif value is None or isinstance(value, _SCALARS):
            found[key] = value
        elif isinstance(value, (tuple, list)):
            found[key] = tuple(float(each) for each in value)
    return found


def describe_scheduler(updater: Updater) -> dict[str, Any]:
    """The state of the learning-rate schedule, of which all optimizers have equal ones."""
    if not updater.schedulers:
        return {}
    state = next(iter(updater.schedulers.values())).state_dict()
    return {k: v for k, v in state.items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a value."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _SCALARS)


def restore_updater(
    updater: Updater, manifest: Manifest, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Give the optimizers, schedules and the loss scale what a checkpoint holds."""
    options = {name: group.options for group in manifest.groups for name in group.parameters}
    keys_by_parameter = manifest.list_states()
    for optimizer, name, parameter in _list_parameters(updater):
        state = {}
        for key in keys_by_parameter.get(name, ()):
            tensor = tensors[name_state(name, key)]
            # Optimizers keep their step count on the host.
            state[key] = tensor if tensor.dim() == 0 else tensor.to(parameter.device)
        if state:
            optimizer.state[parameter] = state
    names = {id(p): n for named in updater.parameters.values() for n, p in named.items()}
    for optimizer in updater.optimizers.values():
        for group in optimizer.param_groups:
            saved = options.get(names[id(group["params"][0])], {})
            group.update({k: v for k, v in saved.items() if k in group})
    for scheduler in updater.schedulers.values():
        scheduler.load_state_dict({**scheduler.state_dict(), **manifest.scheduler})
    updater.loss_scale.value, updater.loss_scale.num_good = manifest.loss_scale


def list_state_names(updater: Updater, manifest: Manifest) -> set[str]:
    """Tensors that this rank's optimizers need from a checkpoint."""
    keys_by_parameter = manifest.list_states()
    return {
        name_state(name, key)
        for _, name, _ in _list_parameters(updater)
        for key in keys_by_parameter.get(name, ())
    }


def check_resume(manifest: Manifest, fingerprint: str) -> None:
    """Refuse a checkpoint of another model."""
    if manifest.model != fingerprint:
        raise InvalidOption(
            f"The checkpoint is of the model {manifest.model}; this one is {fingerprint}.",
            remedy="Resume with the model file and the --set options that it was trained with.",
        )


def _list_parameters(
    updater: Updater,
) -> Iterator[tuple[torch.optim.Optimizer, str, torch.nn.Parameter]]:
    for stage, optimizer in updater.optimizers.items():
        for name, parameter in updater.parameters[stage].items():
            yield optimizer, name, parameter
