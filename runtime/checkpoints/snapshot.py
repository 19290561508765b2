"""Snapshot: between the live objects of a rank and what a checkpoint stores."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from graphplan.errors import InvalidOption
from graphplan_runtime.checkpoints.checkpoint import OPTIMIZER, GroupOptions, Manifest, Option
from graphplan_runtime.messages.transport import Transport
from graphplan_runtime.updates.shards import Shards
from graphplan_runtime.updates.sharing import KERNELS
from graphplan_runtime.updates.update import Updater

_SCALARS = (bool, int, float, str)


def name_state(parameter: str, key: str) -> str:
    """The name of an optimizer's tensor for a parameter."""
    return f"{OPTIMIZER}/{key}/{parameter}"


def list_tensors(
    weights: Mapping[str, torch.Tensor], updater: Updater, *, rank: int
) -> dict[str, torch.Tensor]:
    """The weights for which this rank answers, and the optimizer's tensors for them.

    Of what replicas share, these are the pieces; gather_shared has the whole.
    """
    saver_of = updater.saver_of
    found = {name: tensor for name, tensor in weights.items() if saver_of(name) == rank}
    for optimizer, name, parameter in _list_parameters(updater):
        if saver_of(name) == rank:
            for key, value in optimizer.state.get(parameter, {}).items():
                found[name_state(name, key)] = torch.as_tensor(value)
    return found


def gather_shared(updater: Updater, transport: Transport) -> dict[str, torch.Tensor]:
    """Whole tensors for which this rank answers, of what replicas share; all must call it."""
    found: dict[str, torch.Tensor] = {}
    for stage in updater.holdings.sharing_stages:
        shards = updater.shards.get(stage)
        if shards is not None and not shards.keeps_weights:
            values = {name: each.detach() for name, each in shards.own.items()}
            found |= _keep_own(shards.assemble(values), shards)
        for key, dtype in _agree_keys(updater, stage, transport).items():
            if shards is not None and shards.by_slices:
                state = updater.optimizers[stage].state
                values = {n: state[p][key] for n, p in shards.own.items() if key in state[p]}
                whole = shards.assemble(values, getattr(torch, dtype))
                kept = _keep_own(((n, each) for n, each in whole if n in values), shards)
                found |= {name_state(name, key): each for name, each in kept.items()}
    return found


def _keep_own(
    tensors: Iterable[tuple[str, torch.Tensor]], shards: Shards
) -> dict[str, torch.Tensor]:
    """On the host, those that this rank saves."""
    rank = shards.transport.rank
    return {n: each.cpu().clone() for n, each in tensors if shards.saver_of(n) == rank}


def _agree_keys(updater: Updater, stage: int, transport: Transport) -> dict[str, str]:
    """The dtypes of an optimizer's tensors that are shaped as weights; a rank may have none."""
    own: dict[str, str] = {}
    if stage in updater.shards:
        state = updater.optimizers[stage].state
        for piece in updater.shards[stage].own.values():
            for key, value in state.get(piece, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == piece.shape and piece.dim():
                    own[key] = str(value.dtype).removeprefix("torch.")
    told: dict[str, str] = {}
    for device in updater.holdings.stages.stages[stage].devices:
        text = transport.spread_text(msgspec.json.encode(own).decode(), source=device)
        told |= msgspec.json.decode(text, type=dict[str, str])
    return dict(sorted(told.items()))


def list_groups(updater: Updater, *, rank: int) -> tuple[GroupOptions, ...]:
    """Options of the parameters for which this rank answers."""
    found = []
    names = {id(p): n for named in updater.parameters.values() for n, p in named.items()}
    for optimizer in updater.optimizers.values():
        for group in optimizer.param_groups:
            own = [names[id(parameter)] for parameter in group["params"]]
            own = [name for name in own if updater.saver_of(name) == rank]
            if own:
                found.append(
                    GroupOptions(
                        parameters=tuple(own),
                        options=_plain_options(group),
                        optimizer=type(optimizer).__qualname__,
                    )
                )
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
            found[key] = tuple(None if each is None else float(each) for each in value)
    return found


def describe_scheduler(updater: Updater) -> dict[str, Any]:
    """The state of the learning-rate schedule, of which all optimizers have equal ones."""
    if not updater.schedulers:
        return {}
    return plain_state(next(iter(updater.schedulers.values())))


def plain_state(scheduler: Any) -> dict[str, Any]:
    """What JSON can hold of the state of a schedule: its lambdas cannot."""
    return {k: v for k, v in scheduler.state_dict().items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):  # The schedules of a sequence of schedules.
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, _SCALARS)


def restore_scheduler(scheduler: Any, saved: Mapping[str, Any]) -> None:
    """Give a schedule its state; keys that it does not have, and values of other types, are not
    taken: it would make attributes of them.
    """
    scheduler.load_state_dict(adopt_value(scheduler.state_dict(), dict(saved)))


def adopt_value(own: Any, saved: Any) -> Any:
    """The saved value if it is of the kind of the own one, else the own one."""
    if isinstance(own, dict):
        if not isinstance(saved, dict):
            return own
        return type(own)({k: adopt_value(v, saved[k]) if k in saved else v for k, v in own.items()})
    if isinstance(own, (list, tuple)):
        if not isinstance(saved, (list, tuple)) or len(saved) != len(own):
            return own
        return type(own)(adopt_value(*pair) for pair in zip(own, saved, strict=True))
    if isinstance(own, torch.Tensor):
        return torch.full_like(own, saved) if _is_number(saved) and own.dim() == 0 else own
    if _is_number(saved) and (own is None or _is_number(own)):
        return saved
    return saved if type(own) is type(saved) else own


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def restore_updater(
    updater: Updater, manifest: Manifest, tensors: Mapping[str, torch.Tensor]
) -> list[str]:
    """Give the optimizers, schedules and the loss scale what a checkpoint holds.

    Returns what the checkpoint's options change in those that the optimizers were made with.
    """
    saved_by_name = {name: group for group in manifest.groups for name in group.parameters}
    names = {id(p): n for named in updater.parameters.values() for n, p in named.items()}
    changed: dict[str, None] = {}
    for optimizer in updater.optimizers.values():
        for group in optimizer.param_groups:
            own = [saved_by_name.get(names[id(each)]) for each in group["params"]]
            known = [each for each in own if each is not None]
            if known:
                _check_groups(known, optimizer, group)
                skip = {"lr"} if updater.schedulers else set()
                changed |= dict.fromkeys(_adopt_options(group, known[0].options, skip))
                _check_options(optimizer, group)
    _restore_states(updater, manifest, tensors)
    for scheduler in updater.schedulers.values():
        restore_scheduler(scheduler, manifest.scheduler)
    if updater.loss_scale.dynamic:
        updater.loss_scale.value, updater.loss_scale.num_good = manifest.loss_scale
        if updater.loss_scale.value < 1.0:
            raise ValueError(f"the loss scale is {updater.loss_scale.value}")
    return list(changed)


def _restore_states(
    updater: Updater, manifest: Manifest, tensors: Mapping[str, torch.Tensor]
) -> None:
    keys_by_parameter = manifest.list_states()
    fused = {
        id(each)
        for optimizer in updater.optimizers.values()
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for each in group["params"]
    }
    for optimizer, name, parameter in _list_parameters(updater):
        state, piece = {}, updater.find_piece(name)
        for key in keys_by_parameter.get(name, ()):
            tensor = tensors[name_state(name, key)]
            if piece is not None and tensor.dim() and tensor.shape == piece.weight.shape:
                tensor = piece.take_from(tensor).clone()
            # Optimizers keep their step count on the host, unless a kernel counts.
            on_host = tensor.dim() == 0 and id(parameter) not in fused
            state[key] = tensor if on_host else tensor.to(parameter.device)
        if state:
            _check_state(optimizer, name, parameter, state)
            optimizer.state[parameter] = state


def _check_state(
    optimizer: torch.optim.Optimizer,
    name: str,
    parameter: torch.nn.Parameter,
    state: Mapping[str, torch.Tensor],
) -> None:
    """Refuse a state that the optimizer would trip over in its first step."""
    known = _probe_state(optimizer, parameter)
    if known is None:
        return
    if known.keys() != state.keys():
        raise ValueError(f"the state of {name!r} is {sorted(state)}, not {sorted(known)}")
    for key, probed in known.items():
        if probed.shape == _probe(parameter):
            wanted = parameter.shape
        elif probed.dim() == 0:
            wanted = torch.Size()
        else:  # Sums over some dimensions.
            continue
        if state[key].shape != wanted:
            raise ValueError(f"{key!r} of {name!r} has shape {tuple(state[key].shape)}")


def _probe_state(
    optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter
) -> Mapping[str, torch.Tensor] | None:
    """What an optimizer of torch keeps for a parameter of so many dimensions; None if unknown."""
    kind: Any = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim."):
        return None
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    options = {k: v for k, v in group.items() if k not in ("params", "initial_lr", *KERNELS)}
    probe = torch.nn.Parameter(torch.zeros(_probe(parameter), dtype=parameter.dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        made = kind([{"params": [probe], **options}])
        made.step()
    except Exception:  # One that needs a closure, or knows no such parameters.
        return None
    state: Mapping[str, Any] = made.state[probe]
    return {key: torch.as_tensor(value) for key, value in state.items()}


def _check_options(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
    """Let an optimizer of torch look at the options as if they were given to it: those of a group
    it takes unseen, and a beta above one would end in a complex step."""
    kind: Any = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim."):
        return
    taken = inspect.signature(kind.__init__).parameters
    options = {k: v for k, v in group.items() if k in taken and k not in ("params", *KERNELS)}
    kind([torch.nn.Parameter(torch.zeros(1))], **options)


def _probe(parameter: torch.Tensor) -> torch.Size:
    """Sizes that differ, so that sums over a dimension are seen."""
    return torch.Size(range(2, 2 + parameter.dim()))


def _check_groups(
    saved: Sequence[GroupOptions], optimizer: torch.optim.Optimizer, group: Mapping[str, Any]
) -> None:
    """Refuse the states of another optimizer, and groups that were divided otherwise."""
    own = type(optimizer).__qualname__
    for each in saved:
        # Files of version 1 do not name it; its options tell most of them apart.
        plain = _plain_options(group).keys()
        differs = bool(plain - each.options.keys()) and bool(each.options.keys() - plain)
        if each.optimizer not in (None, own) or (each.optimizer is None and differs):
            raise InvalidOption(
                f"The checkpoint was made with {each.optimizer or 'another optimizer'}, this run"
                f" has {own}.",
                remedy="Let optimizer() of the model file, or --optimizer of the search, give the"
                " one that it was made with.",
            )
        if each.options != saved[0].options:
            raise InvalidOption(
                f"{saved[0].parameters[0]!r} and {each.parameters[0]!r} are in one group of"
                f" {own} now, and had different options in the checkpoint.",
                remedy="Let optimizer() of the model file make the groups that it was made with.",
            )


def _adopt_options(
    group: dict[str, Any], saved: Mapping[str, Option], unsaid: Collection[str]
) -> Iterator[str]:
    """Take the checkpoint's options, which a schedule may have changed; what differs."""
    for key, own in list(group.items()):
        if key == "params" or key in KERNELS or key not in saved:
            continue
        value = adopt_value(own, saved[key])
        if bool(value != own) and key not in unsaid:
            yield f"{key} {value} in place of {own}"
        group[key] = value


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
