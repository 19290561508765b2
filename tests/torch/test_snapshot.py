"""What a checkpoint may give to live optimizers and schedules, and what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from graphplan_runtime.checkpoints.snapshot import (
    _check_options,
    _check_state,
    adopt_value,
    plain_state,
    restore_scheduler,
)


def make_scheduler(kind: str) -> Any:
    """A schedule that has not begun."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    schedules = torch.optim.lr_scheduler
    if kind == "plateau":
        return schedules.ReduceLROnPlateau(optimizer, patience=0)
    if kind == "sequence":
        parts = [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.9)]
        return schedules.SequentialLR(optimizer, parts, [2])
    if kind == "lambda":
        return schedules.LambdaLR(optimizer, lambda step: 0.9**step)
    return schedules.MultiStepLR(optimizer, [2, 4])


@pytest.mark.parametrize("kind", ["plateau", "sequence", "lambda", "steps"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_schedules_go_on_where_they_were(kind: str, num_steps: int) -> None:
    """After a way through JSON."""
    import msgspec

    def step(scheduler: Any, number: int) -> float:
        scheduler.optimizer.step()
        scheduler.step(*([1.0 + number] if kind == "plateau" else []))
        return float(scheduler.optimizer.param_groups[0]["lr"])

    one, two = make_scheduler(kind), make_scheduler(kind)
    for number in range(num_steps):
        step(one, number)
    restore_scheduler(two, msgspec.json.decode(msgspec.json.encode(plain_state(one))))
    two.optimizer.param_groups[0]["lr"] = one.optimizer.param_groups[0]["lr"]
    assert [step(two, n) for n in range(3, 7)] == [step(one, n) for n in range(3, 7)]


def test_a_schedule_takes_only_what_it_has() -> None:
    """load_state_dict would make attributes, and methods, of anything."""
    scheduler = make_scheduler("steps")
    before = scheduler.state_dict()
    hostile = {
        "step": "not callable",
        "optimizer": 7,
        "__class__": "x",
        "last_epoch": "late",
        "gamma": True,
        "base_lrs": [1.0, 2.0],
        "milestones": {"2": 1},
        "_step_count": [1],
    }
    restore_scheduler(scheduler, hostile)
    assert scheduler.state_dict() == before
    scheduler.optimizer.step()
    scheduler.step()


@pytest.mark.parametrize(
    ("own", "saved", "taken"),
    [
        (0.1, 0.2, True),
        (0.1, 1, True),
        (0.1, True, False),
        (False, 1, False),
        (False, True, True),
        (0.1, None, False),
        (math.inf, None, False),
        (None, 0.5, True),
        (None, "text", False),
        ((0.9, 0.99), (0.8, 0.9), True),
        ((0.9, 0.99), (0.8,), False),
        ("min", "max", True),
        ("min", 3, False),
    ],
)
def test_values_keep_their_kind(own: Any, saved: Any, taken: bool) -> None:
    """A number stays a number, a pair a pair."""
    found = adopt_value(own, saved)
    wanted = saved if taken else own
    assert found == wanted
    assert type(found) is type(wanted)


def test_states_that_an_optimizer_would_trip_over_are_refused() -> None:
    """Missing, strange and misshapen ones; those of an optimizer of one's own are not known."""
    weight = torch.nn.Parameter(torch.ones(3, 4))
    weight.grad = torch.ones_like(weight)
    kinds: list[Any] = [torch.optim.Adam, torch.optim.Adafactor, torch.optim.Adagrad]
    for kind in kinds:
        optimizer = kind([weight])
        optimizer.step()
        good = {k: torch.as_tensor(v) for k, v in optimizer.state[weight].items()}
        _check_state(optimizer, "w", weight, good)
        for key in good:
            with pytest.raises(ValueError, match="the state of 'w' is"):
                _check_state(optimizer, "w", weight, {k: v for k, v in good.items() if k != key})
        with pytest.raises(ValueError, match="'step' of 'w' has shape"):
            _check_state(optimizer, "w", weight, {**good, "step": torch.ones(5)})
    adam = torch.optim.Adam([weight])
    adam.step()
    with pytest.raises(ValueError, match="'exp_avg' of 'w' has shape"):
        _check_state(adam, "w", weight, {**adam.state[weight], "exp_avg": torch.ones(4, 3)})

    class Own(torch.optim.Adam):
        """One of the user's."""

    Own.__module__ = "mine"
    _check_state(Own([weight]), "w", weight, {"anything": torch.ones(1)})


def test_options_that_an_optimizer_would_not_take_are_refused() -> None:
    """A beta above one in a checkpoint's manifest made Adam's steps complex."""
    weight = torch.nn.Parameter(torch.ones(3))
    for kind, given in ((torch.optim.Adam, {"betas": (0.9, 2.0)}), (torch.optim.SGD, {"lr": -1.0})):
        optimizer = kind([weight], lr=1e-3)
        group = optimizer.param_groups[0]
        _check_options(optimizer, group)
        with pytest.raises(ValueError, match="Invalid"):
            _check_options(optimizer, {**group, **given})
