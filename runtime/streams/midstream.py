"""Mid-stream: the batches in flight, as tensors that a checkpoint stores and a resumed run replays.

Every rank stores its own part under `flight/<rank>/`: weight versions that are still needed,
gradients of updates that are not complete, the inputs of micro-batches whose backward is to come,
messages that are on their way, and what its optimizers count. A resumed run repeats the forwards of
these micro-batches from their inputs, without messages; where the weights that they used are gone,
their saved tensors are stored too (graphstate.py). So it goes on as if it had never ended.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from graphplan.errors import InvalidFile
from graphplan.files import UNREADABLE, encode_noun
from graphplan.nouns.plan import Plan
from graphplan_runtime.checkpoints.flightnote import FlightNote
from graphplan_runtime.checkpoints.snapshot import plain_state, restore_scheduler
from graphplan_runtime.messages.letters import Letters
from graphplan_runtime.messages.plain import make_plain
from graphplan_runtime.stages.executor import StepState
from graphplan_runtime.stages.stage import StageRunner
from graphplan_runtime.updates.pending import Pending
from graphplan_runtime.updates.predicted import Directed
from graphplan_runtime.updates.update import Updater

if TYPE_CHECKING:
    from graphplan_runtime.pipeline import Pipeline

PREFIX = "flight"
Tensors = Mapping[str, torch.Tensor]


def sign_plan(plan: Plan) -> str:
    """A fingerprint of what decides how a stream goes on."""
    text = encode_noun(plan.stages) + encode_noun(plan.policy) + "\n".join(plan.program).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def describe_flight(pipeline: Pipeline) -> FlightNote | None:
    """What all ranks know; None when nothing but weights and optimizers matters."""
    if pipeline.flight is None:
        return FlightNote(plan=sign_plan(pipeline.plan), first=0) if drifts(pipeline.plan) else None
    flight = pipeline.flight
    return FlightNote(
        plan=sign_plan(pipeline.plan),
        first=flight.stream.first,
        shapes=flight.shapes,
        # JSON has no numbers that are not finite.
        told=tuple(x if math.isfinite(x) else str(x) for x in flight.told),  # type: ignore[misc]
    )


def drifts(plan: Plan) -> bool:
    """Whether replicas have weights of their own."""
    return plan.policy.name == "local" and any(len(s.devices) > 1 for s in plan.stages.stages)


def store_flight(pipeline: Pipeline) -> dict[str, torch.Tensor]:
    """This rank's part of the batches in flight; all ranks must call it."""
    prefix = f"{PREFIX}/{pipeline.rank}"
    found = {f"{prefix}/{name}": tensor for name, tensor in _list_own(pipeline)}
    # Tensors of a file must not share memory.
    return {name: make_plain(tensor.detach()).clone() for name, tensor in found.items()}


def _list_own(pipeline: Pipeline) -> Iterator[tuple[str, torch.Tensor]]:
    for name in _list_drifting(pipeline):
        yield f"weight/{name}", pipeline.weights[name]
        yield from _list_states(pipeline, name)
    if pipeline.flight is None:
        return
    yield from _list_updates(pipeline.updater)
    for stage, scheduler in pipeline.updater.schedulers.items():
        text = json.dumps(plain_state(scheduler)).encode()
        yield f"scheduler/{stage}", torch.tensor(list(text))
    for s, versions in pipeline.versions.items():
        yield f"stage/{s}/updates", torch.tensor(versions.num_updates)
        yield f"stage/{s}/issued", torch.tensor(pipeline.updater.num_issued[s])
        for name, tensor in versions.state_tensors().items():
            yield f"stage/{s}/{name}", tensor
    for name, weight in pipeline.weights.items():
        if weight.grad is not None:
            yield f"gradient/{name}", weight.grad
    for s, runner in pipeline.runners:
        for i in runner.in_flight:
            for name, tensor in runner.store(i, with_graph=pipeline.plan.policy.forgets):
                yield f"micro-batch/{s}/{i}/{name}", tensor
    for batch, state in pipeline.flight.list_unheard():
        for n, (loss, share) in enumerate(state.losses):
            yield f"loss/{batch}/{n}", torch.tensor([float(loss), share], dtype=torch.float64)
    pipeline.flight.run_receives()
    for batch, aloft in pipeline.flight.batches.items():
        if not pipeline.flight.stream.is_even:  # Some forwards of the batch are to come.
            for name, tensor in aloft.state.inputs.items():
                yield f"input/{batch}/{name}", tensor
        for box, letters in aloft.state.letters.items():
            for slot, letter in enumerate(letters.wait()):
                if letter is not None:
                    yield f"letter/{batch}/{box}/{len(letters.tensors)}/{slot}", letter


def _list_drifting(pipeline: Pipeline) -> list[str]:
    """Weights that differ between the devices that hold them."""
    if drifts(pipeline.plan):
        return list(pipeline.weights)
    tied = pipeline.holdings.tied if pipeline.flight is not None else frozenset()
    return sorted(tied & pipeline.weights.keys())


def _list_states(pipeline: Pipeline, weight: str) -> Iterator[tuple[str, torch.Tensor]]:
    updater = pipeline.updater
    for owner, optimizer in updater.optimizers.items():
        parameter = updater.parameters[owner].get(weight)
        for key, value in (
            optimizer.state.get(parameter, {}).items() if parameter is not None else ()
        ):
            if isinstance(value, torch.Tensor):
                yield f"optimizer/{key}/{weight}", value


def _list_updates(updater: Updater) -> Iterator[tuple[str, torch.Tensor]]:
    """Updates under way, and what this rank knows of the loss scale."""
    scale = updater.loss_scale
    yield "loss-scale", torch.tensor([scale.value, scale.num_good], dtype=torch.float64)
    for number, value in scale.held.items():
        yield f"held-scale/{number}", torch.tensor(value, dtype=torch.float64)
    names = {p: n for named in updater.parameters.values() for n, p in named.items()}
    for number, pending in updater.pending.items():
        yield f"pending/{number}/stages", torch.tensor(sorted(pending.stages))
        yield f"pending/{number}/unscaled", torch.tensor(pending.is_unscaled)
        yield f"pending/{number}/settled", torch.tensor(pending.is_settled)
        for parameter, gradient in pending.gradients.items():
            yield f"pending/{number}/gradient/{names[parameter]}", gradient
        if pending.is_settled:
            if pending.figures is not None:
                yield f"pending/{number}/figures", pending.figures
            for parameter, gradient in pending.sums.items():
                yield f"pending/{number}/sum/{names[parameter]}", gradient


def restore_flight(pipeline: Pipeline, note: FlightNote, tensors: Tensors) -> None:
    """Go on in mid-stream; weights, optimizers and the number of steps have been restored."""
    own = {name.split("/", 2)[2]: tensor for name, tensor in tensors.items()}
    _restore_drifting(pipeline, own)
    if pipeline.flight is None:
        return
    for stage, scheduler in pipeline.updater.schedulers.items():
        restore_scheduler(scheduler, _read_state(own[f"scheduler/{stage}"]))
    for name, weight in pipeline.weights.items():
        if f"gradient/{name}" in own:
            weight.grad = own[f"gradient/{name}"].to(weight.device)
    _restore_versions(pipeline, note, own)
    _restore_updates(pipeline, own)
    runners_by_batch = _restore_batches(pipeline, note, own)
    count = pipeline.flight.stream.count
    for s, versions in pipeline.versions.items():
        for i, named in sorted(_group(own, f"micro-batch/{s}/").items()):
            versions.adopt(i, int(named["facts"][0]))
            runners_by_batch[i // count][s].restore(i, named)


def _read_state(tensor: torch.Tensor) -> dict[str, Any]:
    """The state of a schedule, stored as the numbers of its JSON text."""
    try:
        return msgspec.json.decode(bytes(tensor.tolist()), type=dict[str, Any])
    except (*UNREADABLE, ValueError, TypeError) as error:
        raise InvalidFile(
            f"The checkpoint holds a learning-rate schedule that cannot be read: {error}.",
            remedy="Resume from an older checkpoint of the same folder.",
        ) from error


def _restore_drifting(pipeline: Pipeline, own: Tensors) -> None:
    updater = pipeline.updater
    for name in _list_drifting(pipeline):
        with torch.no_grad():
            pipeline.weights[name].copy_(own[f"weight/{name}"])
        for owner, optimizer in updater.optimizers.items():
            parameter = updater.parameters[owner].get(name)
            if parameter is None:
                continue
            for key in optimizer.state.get(parameter, {}):
                found = own.get(f"optimizer/{key}/{name}")
                if found is not None:
                    optimizer.state[parameter][key] = found.to(parameter.device)


def _restore_updates(pipeline: Pipeline, own: Tensors) -> None:
    """Take back updates under way; what was not settled is exchanged once more."""
    updater = pipeline.updater
    scale = updater.loss_scale
    scale.value, scale.num_good = float(own["loss-scale"][0]), int(own["loss-scale"][1])
    scale.held = {n: float(t[""]) for n, t in _group(own, "held-scale/").items()}
    parameters = {n: p for named in updater.parameters.values() for n, p in named.items()}
    found = []
    for number, named in sorted(_group(own, "pending/").items()):
        pending = Pending(number, stages=set(named["stages"].tolist()))
        pending.is_unscaled = bool(named["unscaled"])
        for name, tensor in named.items():
            kind, _, weight = name.partition("/")
            if weight:
                parameter = parameters[weight]
                held = pending.sums if kind == "sum" else pending.gradients
                held[parameter] = tensor.to(parameter.device)
        pending.figures = named.get("figures")
        pending.is_settled = bool(named["settled"])
        found.append(pending)
    issued = {s: int(own[f"stage/{s}/issued"]) for s in pipeline.versions}
    updater.resume(issued, found)


def _restore_versions(pipeline: Pipeline, note: FlightNote, own: Tensors) -> None:
    assert pipeline.flight is not None
    count, optimizers = pipeline.flight.stream.count, list(pipeline.updater.optimizers.values())
    for s, versions in pipeline.versions.items():
        versions.restart(note.first * count)
        versions.num_updates = int(own[f"stage/{s}/updates"])
        if isinstance(versions, Directed) and versions.num_updates:
            versions.directions.know(optimizers)
        prefix = f"stage/{s}/"
        named = {n.removeprefix(prefix): t for n, t in own.items() if n.startswith(prefix)}
        versions.load_tensors(named)


def _restore_batches(
    pipeline: Pipeline, note: FlightNote, own: Tensors
) -> dict[int, Mapping[int, StageRunner]]:
    """Take back the batches in flight; what runs them."""
    assert pipeline.flight is not None
    runners_by_batch = {}
    flight, count = pipeline.flight, pipeline.flight.stream.count
    flight.stream.resume(note.first, pipeline.num_steps)
    for batch, shapes in enumerate(note.shapes, pipeline.num_steps - len(note.shapes)):
        state = StepState(
            step=batch,
            seed=pipeline.seed,
            inputs={
                n: t.to(pipeline.device) for n, t in _group(own, "input/").get(batch, {}).items()
            },
            loss_scale=pipeline.updater.loss_scale,
            first=batch * count,
        )
        for name, tensor in own.items():
            words = name.split("/")
            if words[:2] == ["letter", str(batch)]:
                box, num_slots, slot = map(int, words[2:])
                letters = state.letters.setdefault(box, Letters(num_slots))
                letters.tensors[slot] = tensor.to(pipeline.device)
        runners_by_batch[batch], actions = pipeline.resolve_shapes(shapes)
        flight.adopt(batch, state, actions, shapes)
        if not flight.stream.is_even:
            losses = sorted(_group(own, f"loss/{batch}/").items())
            state.losses += [(named[""][0], float(named[""][1])) for _, named in losses]
            flight.open_loss(batch)
    flight.told.extend(map(float, note.told))
    return runners_by_batch


def _group(own: Tensors, prefix: str) -> dict[int, dict[str, torch.Tensor]]:
    """Tensors by micro-batch."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in own.items():
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition("/")
            found.setdefault(int(number), {})[rest] = tensor
    return found
