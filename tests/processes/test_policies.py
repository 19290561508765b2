"""Weight policies: exact oracles, on several processes, with batches that follow one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import PolicyName
from graphplan_runtime import Pipeline
from tests.processes.crew import Crew
from tests.processes.models import CASES
from tests.processes.plans import assign_stages, plan_by_hand
from tests.processes.training import capture_case

EXACT = 1e-12


def trace_weights(runs: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """For each run this rank's weight after every update, all runs in one process group."""
    torch.set_default_dtype(torch.float64)
    return [trace_one(**run) for run in runs]


def trace_one(
    case: str,
    policy: PolicyName,
    *,
    lr: float,
    updates: int = 6,
    batch_size: int = 2,
    optimizer: str = "sgd",
    clip_norm: float | None = None,
    devices: Sequence[tuple[int, ...]] | None = None,
    **options: Any,
) -> list[float]:
    """Weights after updates 1, 2, …; a batch has `batch_size` micro-batches of one sample."""
    captured, model = capture_case(case, torch.float64), CASES[case]
    plan = plan_trace(case, policy, batch_size=batch_size, devices=devices, **options)
    made: dict[str, Any] = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=lr),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.5),
        "adam": lambda parameters: torch.optim.Adam(parameters, lr=lr, betas=(0.5, 0.75)),
    }
    pipeline = Pipeline(
        plan,
        captured,
        optimizer=made[optimizer],
        state=model.build().state_dict(),
        clip_norm=clip_norm,
    )
    found: list[float] = []
    for versions in pipeline.versions.values():
        watch_updates(versions, found)
    per_update = batch_size if policy in ("flush", "local") else options.get("accumulate", 1)
    for _ in range(updates * per_update // batch_size):
        pipeline.step(model.inputs(batch_size))
    pipeline.drain()
    return found


def plan_trace(
    case: str,
    policy: PolicyName,
    *,
    batch_size: int,
    devices: Sequence[tuple[int, ...]] | None = None,
    **options: Any,
) -> Plan:
    """The plan of a case, with one stage on a device unless `devices` says otherwise."""
    captured, model = capture_case(case, torch.float64), CASES[case]
    return plan_by_hand(
        captured.graph,
        assign_stages(captured.graph, model.stage_by_module),
        devices=devices or [(s,) for s in range(model.num_stages)],
        batch_size=batch_size,
        micro_batch_size=1,
        policy=policy,
        policy_options=options,
    )


def watch_updates(versions: Any, found: list[float]) -> None:
    """Note the weight whenever it has been updated."""
    told = versions.updated

    def updated() -> None:
        told()
        found.extend(float(each.detach()) for each in versions.trainable)

    versions.updated = updated


def fractions(text: str) -> list[float]:
    """`1/4 3/8` as numbers."""
    return [float(Fraction(word)) for word in text.split()]


SGD2 = "1/4 3/8 7/16 15/32 31/64 63/128"
STASH2 = "1/4 7/16 33/64 135/256 529/1024 2071/4096"
TWO2 = "1/4 1/2 5/8 5/8 9/16 1/2"
ORACLES2: list[tuple[dict[str, Any], str]] = [
    ({"policy": "flush", "batch_size": 1}, SGD2),
    ({"policy": "stash"}, STASH2),
    ({"policy": "stash", "batch_size": 1}, STASH2),
    ({"policy": "naive"}, STASH2),
    ({"policy": "2bw", "accumulate": 1}, TWO2),
    ({"policy": "2bw", "accumulate": 2}, TWO2),
    ({"policy": "2bw", "accumulate": 3, "batch_size": 6}, TWO2),
    ({"policy": "predict"}, "1/4 7/16 29/64 111/256 469/1024 2007/4096"),
    (
        {"policy": "predict", "direction": "displacement"},
        "1/4 7/16 29/64 111/256 469/1024 2007/4096",
    ),
]
ORACLES3: list[tuple[dict[str, Any], str]] = [
    ({"policy": "flush", "batch_size": 1}, "1/8 13/64 129/512 1157/4096"),
    ({"policy": "stash"}, "1/8 15/64 161/512 1455/4096"),
    ({"policy": "naive"}, "1/8 15/64 161/512 1455/4096"),
    ({"policy": "vertical-sync"}, "1/8 1/4 3/8 29/64"),
    ({"policy": "2bw", "accumulate": 2}, "1/8 1/4 21/64 23/64"),
    ({"policy": "predict"}, "1/8 15/64 153/512 1215/4096"),
    ({"policy": "spectrain1"}, "1/8 7/32 35/128 139/512"),
]


@pytest.mark.parametrize(
    ("case", "lr", "oracles"), [("sum2", 0.25, ORACLES2), ("sum3", 0.125, ORACLES3)]
)
def test_exact_fractions(
    crew: Crew, case: str, lr: float, oracles: list[tuple[dict[str, Any], str]]
) -> None:
    """a += w_s, loss (a - 1)^2 / 2: every stage has the weights that can be computed by hand."""
    runs = [
        {"case": case, "lr": lr, "updates": len(text.split()), **setup} for setup, text in oracles
    ]
    by_rank = crew.run(CASES[case].num_stages, trace_weights, runs)
    for i, (setup, text) in enumerate(oracles):
        for rank, found in enumerate(by_rank):
            assert found[i] == pytest.approx(fractions(text), abs=EXACT), (setup, rank)


def test_one_stage_is_the_plain_optimizer(crew: Crew) -> None:
    """With S = 1 every policy but 2bw is SGD; 2bw is one update late."""
    names = ("flush", "local", "naive", "stash", "vertical-sync", "predict", "spectrain1",
             "spectrain2")  # fmt: skip
    runs = [
        {"case": "product1", "policy": name, "lr": 0.25, "batch_size": 1, "optimizer": "momentum"}
        for name in (*names, "2bw")
    ]
    *found, late = crew.run(1, trace_weights, runs)[0]
    plain, w, moved = [], 0.5, 0.0
    for _ in range(6):
        moved = 0.5 * moved + (w - 1)
        w -= 0.25 * moved
        plain.append(w)
    assert all(each == pytest.approx(plain, abs=EXACT) for each in found)
    lagging = [0.5, 0.5]
    moved = 0.0
    for _ in range(6):
        moved = 0.5 * moved + (lagging[-2] - 1)
        lagging.append(lagging[-1] - 0.25 * moved)
    assert late == pytest.approx(lagging[2:], abs=EXACT)


class Descent:
    """SGD, with momentum, and Adam, on a number."""

    def __init__(self, name: str) -> None:
        self.name, self.first, self.second, self.step = name, 0.0, 0.0, 0

    def direction(self, gradient: float) -> float:
        """What the learning rate is multiplied with."""
        self.step += 1
        if self.name != "adam":
            self.first = (0.5 if self.name == "momentum" else 0.0) * self.first + gradient
            return self.first
        self.first = 0.5 * self.first + 0.5 * gradient
        self.second = 0.75 * self.second + 0.25 * gradient**2
        spread = math.sqrt(self.second / (1 - 0.75**self.step)) + 1e-8
        return self.first / (1 - 0.5**self.step) / spread


def replay_products(
    policy: str,
    *,
    optimizer: str,
    lr: float,
    updates: int,
    waits: Sequence[int] = (2, 1, 0),
    clip_norm: float = math.inf,
) -> list[list[float]]:
    """a *= w_s on three stages, in plain Python: weights by stage after every update.

    `waits` are the warm-ups of the stages.
    """
    num = 3
    history = [[0.5] for _ in range(num)]
    descents = [Descent(optimizer) for _ in range(num)]
    steps = [0.0] * num

    def ahead(s: int, version: int, distance: int) -> float:
        if version == 0:
            return history[s][0]
        direction = (history[s][version - 1] - history[s][version]) / lr
        return history[s][version] - lr * distance * direction

    for t in range(updates):
        seen = [max(0, t - w) for w in waits]
        if policy == "vertical-sync":
            seen = [max(0, t - max(waits))] * num
        forward, backward = [history[s][seen[s]] for s in range(num)], []
        for s in range(num):
            extra = (max(waits) - waits[s]) // 2 if policy == "spectrain1" else 0
            if policy in ("predict", "spectrain1", "spectrain2"):
                forward[s] = ahead(s, seen[s], t - seen[s] + extra)
            current = history[s][t]
            by_policy = {"naive": current, "predict": current, "spectrain1": ahead(s, t, extra)}
            backward.append(by_policy.get(policy, forward[s]))
        inputs = [1.0]
        for w in forward:
            inputs.append(inputs[-1] * w)
        gradient, found = inputs[-1] - 1, [0.0] * num
        for s in reversed(range(num)):
            found[s] = gradient * inputs[s]
            gradient *= backward[s]
        factor = min(1.0, clip_norm / (math.hypot(*found) + 1e-6))
        for s in range(num):
            steps[s] = descents[s].direction(factor * found[s])
            history[s].append(history[s][-1] - lr * steps[s])
    return [each[1:] for each in history]


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.25), ("momentum", 0.25), ("adam", 0.02)])
def test_a_backward_that_uses_its_weights(crew: Crew, optimizer: str, lr: float) -> None:
    """a *= w_s on three stages: all policies are as a few lines of Python say, and all differ.

    Both forms of the direction are the same, as the learning rate does not change.
    """
    names = ["naive", "stash", "vertical-sync", "predict", "spectrain1", "spectrain2"]
    common = {"case": "product3", "lr": lr, "batch_size": 4, "optimizer": optimizer, "updates": 12}
    runs = [{**common, "policy": name} for name in names]
    runs += [{**common, "policy": name, "direction": "displacement"} for name in names[3:]]
    by_rank = crew.run(3, trace_weights, runs)
    seen = set()
    for i, name in enumerate(names + names[3:]):
        wanted = replay_products(name, optimizer=optimizer, lr=lr, updates=12)
        for rank in range(3):
            assert by_rank[rank][i] == pytest.approx(wanted[rank], abs=EXACT), (name, rank)
        seen.add(tuple(round(each, 9) for each in by_rank[0][i]))
    assert len(seen) == len(names)


@pytest.mark.parametrize(
    "devices", [((0,), (1,), (2,)), ((0,), (1,), (0,)), ((0,), (0,), (1,))], ids=str
)
def test_clipping_under_every_policy(crew: Crew, devices: Sequence[tuple[int, ...]]) -> None:
    """The norm is that of all stages for one update, also where stages share a device."""
    names: list[Any] = ["naive", "stash", "vertical-sync", "predict", "spectrain1", "spectrain2"]
    common: dict[str, Any] = {"batch_size": 16, "devices": devices}
    plans = {name: plan_trace("product3", name, **common) for name in names}
    runs = [
        {**common, "case": "product3", "policy": name, "lr": 0.25, "updates": 32,
         "clip_norm": 0.05, "optimizer": "momentum"}
        for name in names
    ]  # fmt: skip
    by_rank = crew.run(1 + max(d for (d,) in devices), trace_weights, runs)
    seen = set()
    for i, name in enumerate(names):
        waits = plans[name].policy.warmups
        options: dict[str, Any] = {
            "optimizer": "momentum", "lr": 0.25, "updates": 32, "waits": waits
        }  # fmt: skip
        wanted = replay_products(name, clip_norm=0.05, **options)
        free = replay_products(name, **options)
        assert wanted[0] != pytest.approx(free[0], abs=1e-3), "nothing was clipped"
        for rank, found in enumerate(by_rank):
            hosted = [s for s, (device,) in enumerate(devices) if device == rank]
            together = [w for each in zip(*(wanted[s] for s in hosted), strict=True) for w in each]
            assert found[i] == pytest.approx(together, abs=EXACT), (name, rank)
        seen.add(tuple(round(each, 9) for each in wanted[0]))
    assert len(seen) > 3


@pytest.mark.parametrize("case", ["product2", "product3", "product4", "diamond"])
def test_2bw_is_its_recurrence_for_every_legal_accumulation(crew: Crew, case: str) -> None:
    """W(t+1) = W(t) - lr * grad f(W(t-1)) for all depths, a graph, and all m >= max w_s."""
    num = CASES[case].num_stages
    depth = 2 if case == "diamond" else num - 1
    runs = [
        {"case": case, "policy": "2bw", "lr": 0.5, "updates": 6, "accumulate": m,
         "batch_size": size}
        for m in range(depth, depth + 3)
        for size in (m, 2 * m)
    ]  # fmt: skip
    by_rank = crew.run(num, trace_weights, runs)
    weights = [torch.full((num,), 0.5, dtype=torch.float64)] * 2
    for _ in range(6):
        old = weights[-2].clone().requires_grad_()
        branches = old[1] + old[2] if case == "diamond" else None
        output = old[0] * branches * old[3] if branches is not None else old.prod()
        (gradient,) = torch.autograd.grad((output - 1).square() / 2, old)
        weights.append(weights[-1] - 0.5 * gradient)
    for i, run in enumerate(runs):
        for rank in range(num):
            wanted = [float(each[rank]) for each in weights[2:]]
            assert by_rank[rank][i] == pytest.approx(wanted, abs=EXACT), run
