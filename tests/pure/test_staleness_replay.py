"""Replays of the weight policies: exact trajectories, recurrences, versions and their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.errors import InvalidOption, InvalidProgram
from graphplan.nouns.policy import DirectionForm, PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule, parse_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.steady import build_steady, order_steady
from graphplan.schedule.zerobubble import build_zero_bubble
from graphplan.staleness.models import Model, ProductModel, SumModel
from graphplan.staleness.optimizers import Adam, Optimizer, Sgd
from graphplan.staleness.replay import Replay, replay_schedule
from graphplan.staleness.versions import list_reads
from tests.pure.strategies import chain_edges, chain_prices, dag_edges, dag_prices

EVERY: list[PolicyName] = [
    "flush",
    "naive",
    "stash",
    "vertical-sync",
    "2bw",
    "predict",
    "spectrain1",
    "spectrain2",
    "local",
]
ASYNCHRONOUS = [name for name in EVERY if name not in ("flush", "local")]

ORACLES = {
    (2, "flush"): "1/4 3/8 7/16 15/32 31/64 63/128",
    (2, "stash"): "1/4 7/16 33/64 135/256 529/1024 2071/4096",
    (2, "naive"): "1/4 7/16 33/64 135/256 529/1024 2071/4096",
    (2, "2bw"): "1/4 1/2 5/8 5/8 9/16 1/2",
    (2, "predict"): "1/4 7/16 29/64 111/256 469/1024 2007/4096",
    (3, "flush"): "1/8 13/64 129/512 1157/4096",
    (3, "stash"): "1/8 15/64 161/512 1455/4096",
    (3, "naive"): "1/8 15/64 161/512 1455/4096",
    (3, "vertical-sync"): "1/8 1/4 3/8 29/64",
    (3, "2bw"): "1/8 1/4 21/64 23/64",
    (3, "predict"): "1/8 15/64 153/512 1215/4096",
    (3, "spectrain1"): "1/8 7/32 35/128 139/512",
}
"""After every update the weight of every stage of the sum model, from 0; lr is 1/4 and 1/8."""

Trajectory = list[list[Fraction]]
"""By stage, the weights after every update."""


def replay_chain(
    num_stages: int,
    name: PolicyName,
    model: Model,
    optimizer: Optimizer,
    *,
    num_updates: int,
    accumulate: int = 1,
    form: DirectionForm = "optimizer",
) -> Trajectory:
    """The trajectory of a plain chain with its usual warm-ups."""
    sync = name in ("flush", "local")
    count = accumulate * (1 if sync else num_updates)
    priced = chain_prices(num_stages, count)
    policy = WeightPolicy(
        name=name,
        warmups=() if sync else tuple(range(num_stages - 1, -1, -1)),
        accumulate=1 if sync else accumulate,
        direction=form,
    )
    schedule = build_1f1b(priced) if sync else build_steady(priced, policy)
    seen, _ = watch_replay(
        priced,
        schedule,
        policy,
        model,
        optimizer,
        num_batches=num_updates if sync else 1,
    )
    return seen


def watch_replay(
    priced: PricedStages,
    schedule: Schedule,
    policy: WeightPolicy,
    model: Model,
    optimizer: Optimizer,
    *,
    num_batches: int = 1,
) -> tuple[Trajectory, Replay]:
    """A replay and the weights that it went through."""
    seen: Trajectory = [[] for _ in priced.stages]

    def watch(stage: int, version: int, weights: Fraction) -> None:
        seen[stage].append(weights)
        assert len(seen[stage]) == version

    replay = replay_schedule(
        priced,
        schedule,
        policy,
        model,
        optimizer,
        num_batches=num_batches,
        watch=watch,
    )
    return seen, replay


@pytest.mark.parametrize(("num_stages", "name"), ORACLES)
def test_the_sum_model_goes_through_the_published_fractions(
    num_stages: int, name: PolicyName
) -> None:
    """Every stage has the oracle's weights after every update, exactly."""
    expected = [Fraction(each) for each in ORACLES[num_stages, name].split()]
    least = max(1, num_stages - 1) if name == "2bw" else 1
    for accumulate in (least, least + 1, least + 3) if name in ("2bw", "flush") else (1,):
        seen = replay_chain(
            num_stages,
            name,
            SumModel(),
            Sgd(rate=Fraction(1, 2**num_stages)),
            num_updates=len(expected),
            accumulate=accumulate,
        )
        assert seen == [expected] * num_stages


def gradient_product(weights: Sequence[Fraction], backward: Sequence[Fraction]) -> list[Fraction]:
    """Gradients of (w_0 ... w_n - 1)^2 / 2 with activations of `weights`, chain of `backward`."""
    ahead = Fraction(1)
    activations = []
    for weight in weights:
        activations.append(ahead)
        ahead *= weight
    given = ahead - 1
    found = []
    for weight, activation in zip(reversed(backward), reversed(activations), strict=True):
        found.append(given * activation)
        given *= weight
    return found[::-1]


def gradient_sum(weights: Sequence[Fraction], backward: Sequence[Fraction]) -> list[Fraction]:
    """Gradients of (w_0 + ... + w_n - 1)^2 / 2."""
    return [sum(weights, Fraction(0)) - 1] * len(weights)


def iterate_recurrence(
    num_stages: int,
    name: PolicyName,
    gradient: Callable[[Sequence[Fraction], Sequence[Fraction]], list[Fraction]],
    *,
    start: Fraction,
    rate: Fraction,
    momentum: Fraction,
    num_updates: int,
) -> Trajectory:
    """The policies as recurrences over update numbers, without a schedule or a stage's view."""
    history = [[start] for _ in range(num_stages)]
    buffers = [Fraction(0)] * num_stages

    def moved(stage: int, version: int, distance: int) -> Fraction:
        line = history[stage]
        last = line[version] - line[version - 1] if version else Fraction(0)
        return line[version] + distance * last

    for t in range(num_updates):
        forward, backward = [], []
        for s in range(num_stages):
            lag = num_stages - 1 - s
            old = max(0, t - lag)
            half = s // 2
            reads = {
                "flush": (moved(s, t, 0), moved(s, t, 0)),
                "naive": (moved(s, old, 0), moved(s, t, 0)),
                "stash": (moved(s, old, 0),) * 2,
                "vertical-sync": (moved(s, max(0, t - num_stages + 1), 0),) * 2,
                "2bw": (moved(s, max(0, t - 1), 0),) * 2,
                "predict": (moved(s, old, lag), moved(s, t, 0)),
                "spectrain1": (moved(s, old, lag + half), moved(s, t, half)),
                "spectrain2": (moved(s, old, lag),) * 2,
            }[name]
            forward.append(reads[0])
            backward.append(reads[1])
        for s, each in enumerate(gradient(forward, backward)):
            buffers[s] = momentum * buffers[s] + each
            history[s].append(history[s][-1] - rate * buffers[s])
    return [line[1:] for line in history]


@pytest.mark.parametrize("form", get_args(DirectionForm))
@pytest.mark.parametrize("momentum", [Fraction(0), Fraction(1, 2)])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [name for name in EVERY if name != "local"])
def test_replays_equal_their_recurrences(
    name: PolicyName, num_stages: int, momentum: Fraction, form: DirectionForm
) -> None:
    """Sum and product models, with and without momentum, in both forms of prediction."""
    rate = Fraction(1, 8)
    cases: list[tuple[Model, Callable[..., list[Fraction]], Fraction]] = [
        (SumModel(), gradient_sum, Fraction(0)),
        (ProductModel(Fraction(3, 4)), gradient_product, Fraction(3, 4)),
    ]
    for model, gradient, start in cases:
        accumulate = max(1, num_stages - 1) if name == "2bw" else 1
        seen = replay_chain(
            num_stages,
            name,
            model,
            Sgd(rate=rate, momentum=momentum),
            num_updates=5,
            accumulate=accumulate,
            form=form,
        )
        assert seen == iterate_recurrence(
            num_stages,
            name,
            gradient,
            start=start,
            rate=rate,
            momentum=momentum,
            num_updates=5,
        )


def test_stash_and_naive_differ_where_backwards_use_weights() -> None:
    """From three stages on, in the product model only; with two, B reads what F read at s = 1."""
    cases: list[tuple[int, Model, bool]] = [
        (2, ProductModel(), False),
        (3, ProductModel(), True),
        (4, ProductModel(), True),
        (3, SumModel(), False),
    ]
    for num_stages, model, differ in cases:
        stash, naive = (
            replay_chain(num_stages, name, model, Sgd(rate=Fraction(1, 8)), num_updates=6)
            for name in ("stash", "naive")
        )
        assert (stash != naive) == differ


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", EVERY)
def test_one_stage_is_the_plain_optimizer(name: PolicyName, accumulate: int) -> None:
    """Except for 2bw, whose gradients are one update old even then."""
    optimizer = Sgd(rate=Fraction(1, 4), momentum=Fraction(1, 2))
    seen = replay_chain(1, name, ProductModel(), optimizer, num_updates=5, accumulate=accumulate)
    weight, state, plain = Fraction(1, 2), optimizer.start_state(), []
    for _ in range(5):
        weight, state = optimizer.take_step(weight, weight - 1, state)
        plain.append(weight)
    assert (seen == [plain]) == (name != "2bw")


@pytest.mark.parametrize("depth", range(1, 6))
def test_2bw_equals_its_recurrence_wherever_it_is_legal(depth: int) -> None:
    """W(t+1) = W(t) - lr grad f(W(t-1)) for every depth d and every m from max w_s on."""
    expected = iterate_recurrence(
        depth,
        "2bw",
        gradient_product,
        start=Fraction(1, 2),
        rate=Fraction(1, 4),
        momentum=Fraction(0),
        num_updates=4,
    )
    for accumulate in range(max(1, depth - 1), depth + 4):
        seen = replay_chain(
            depth,
            "2bw",
            ProductModel(),
            Sgd(rate=Fraction(1, 4)),
            num_updates=4,
            accumulate=accumulate,
        )
        assert seen == expected


@pytest.mark.parametrize("depth", range(3, 6))
def test_2bw_refuses_fewer_micro_batches_than_its_versions_bear(depth: int) -> None:
    """m = max w_s - 1 would read a version that is not there, and the error says the least m."""
    priced = chain_prices(depth, 12 * (depth - 2))
    policy = WeightPolicy(name="2bw", warmups=tuple(range(depth - 1, -1, -1)), accumulate=depth - 2)
    schedule = order_steady(priced, policy.warmups)
    with pytest.raises(InvalidOption, match=f"Set accumulate to {depth - 1} or more"):
        replay_schedule(priced, schedule, policy, SumModel(), Sgd(rate=Fraction(1, 8)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_staleness_on_graphs_is_the_warm_up(data: st.DataObject) -> None:
    """min(t, w_s) at every stage of every graph, for any warm-ups that fall along its edges."""
    num = data.draw(st.integers(1, 7), label="stages")
    edges = data.draw(dag_edges(num_stages=num), label="edges")
    priced = dag_prices(edges, 12, num_stages=num)
    extra = data.draw(st.integers(0, 2), label="extra")
    warmups = tuple(height + extra for height in priced.heights)
    policy = WeightPolicy(name="stash", warmups=warmups)
    for stamped in list_reads(priced, order_steady(priced, warmups), policy):
        stage, t = stamped.task.stage, stamped.task.micro_batch
        assert t - stamped.read.version == min(t, warmups[stage])
        if stamped.task.kind == "B":
            assert stamped.current == t


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_versions_kept_are_those_promised(data: st.DataObject) -> None:
    """No policy holds more weights than `num_versions` prices; stash and 2bw hold just those."""
    num = data.draw(st.integers(1, 5), label="stages")
    name = data.draw(st.sampled_from(ASYNCHRONOUS))
    edges = data.draw(dag_edges(num_stages=num), label="edges")
    deepest = max(dag_prices(edges, num_stages=num).heights)
    accumulate = max(1, deepest) if name == "2bw" else 1
    priced = dag_prices(edges, 12 * accumulate, num_stages=num)
    policy = WeightPolicy(name=name, warmups=priced.heights, accumulate=accumulate)
    replay = replay_schedule(
        priced, build_steady(priced, policy), policy, SumModel(), Sgd(rate=Fraction(1, 64))
    )
    for stage, peak in enumerate(replay.peak_versions):
        assert peak <= policy.num_versions(stage)
        if name in ("stash", "2bw", "vertical-sync", "naive", "spectrain2"):
            assert peak == policy.num_versions(stage)


def test_flush_equals_the_plain_optimizer_under_any_order() -> None:
    """GPipe, 1F1B and a split backward give the full gradient's trajectory."""
    priced = chain_prices(3, 4)
    optimizer = Sgd(rate=Fraction(1, 8), momentum=Fraction(1, 4))
    plain = iterate_recurrence(
        3,
        "flush",
        gradient_product,
        start=Fraction(1, 2),
        rate=Fraction(1, 8),
        momentum=Fraction(1, 4),
        num_updates=3,
    )
    for build in (build_gpipe, build_1f1b, build_zero_bubble):
        seen, _ = watch_replay(
            priced, build(priced), WeightPolicy(), ProductModel(), optimizer, num_batches=3
        )
        assert seen == plain


def test_graphs_sum_the_gradients_of_their_branches() -> None:
    """Two branches that meet: with flush, the fork gets both gradients."""
    priced = dag_prices([(0, 1), (0, 2), (1, 3), (2, 3)], 1)
    seen, _ = watch_replay(
        priced, build_1f1b(priced), WeightPolicy(), ProductModel(), Sgd(rate=Fraction(1))
    )
    # a = w0 (w1 + w2) w3 = 1/4, so that the loss's gradient is -3/4.
    half = Fraction(1, 2)
    assert seen == [
        [half + Fraction(3, 4) * half],
        [half + Fraction(3, 4) * half * half],
        [half + Fraction(3, 4) * half * half],
        [half + Fraction(3, 4) * half],
    ]


class Targets:
    """One weight per stage, loss (w - x)^2 / 2 for micro-batch x: replicas drift apart."""

    def start_weights(self, stage: int) -> Fraction:
        """Zero."""
        return Fraction(0)

    def run_forward(
        self, stage: int, weights: Fraction, inputs: tuple[Fraction, ...], micro_batch: int
    ) -> tuple[Fraction, Fraction]:
        """The difference is all that the backward needs."""
        return weights - micro_batch, weights - micro_batch

    def run_backward(
        self, stage: int, weights: Fraction, saved: Fraction, gradient: Fraction | None
    ) -> tuple[tuple[Fraction, ...], Fraction]:
        """The gradient of the square."""
        return (), saved


def test_local_averages_every_h_steps() -> None:
    """Two replicas with data 0, 2, 4 and 1, 3, 5; their mean is taken after every second step."""
    priced = dag_prices([], 1, num_stages=1, devices=[(0, 1)], micro_batch_sizes=[2])
    policy = WeightPolicy(name="local", local_steps=2)
    seen, replay = watch_replay(
        priced, build_gpipe(priced), policy, Targets(), Sgd(rate=Fraction(1, 2)), num_batches=3
    )
    # (0, 1/2), then (1, 7/4) whose mean is 11/8, then (43/16, 51/16) from the mean.
    assert seen == [[Fraction(1, 4), Fraction(11, 8), Fraction(47, 16)]]
    assert replay.weights == (Fraction(47, 16),)


def test_adam_predicts_its_own_displacement() -> None:
    """At a constant rate and without decay both forms of prediction agree; decay parts them."""
    for decay, agree in ((0.0, True), (0.1, False)):
        ends = []
        for form in get_args(DirectionForm):
            model = ProductModel(0.5)  # type: ignore[arg-type]
            optimizer = Adam(rate=0.01, weight_decay=decay)
            seen = replay_chain(3, "predict", model, optimizer, num_updates=8, form=form)
            ends.append([float(line[-1]) for line in seen])
        assert (ends[0] == pytest.approx(ends[1], rel=1e-12)) == agree


def test_orders_that_cannot_run_are_refused() -> None:
    """A backward before its gradient came is a deadlock, told with the task."""
    priced = chain_prices(2, 2)
    schedule = parse_schedule("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", name="wrong")
    with pytest.raises(InvalidProgram, match="stops at 0B0"):
        list(list_reads(priced, schedule, WeightPolicy()))


def test_asynchronous_policies_do_not_repeat_a_schedule() -> None:
    """They never drain, so that more batches mean a longer schedule."""
    priced = chain_prices(2, 4)
    policy = WeightPolicy(name="stash", warmups=(1, 0))
    with pytest.raises(InvalidOption, match="does not drain"):
        replay_schedule(
            priced,
            build_steady(priced, policy),
            policy,
            SumModel(),
            Sgd(rate=Fraction(1, 4)),
            num_batches=2,
        )


def test_mixed_sizes_and_uneven_replicas_are_refused() -> None:
    """Versions are counted in equal micro-batches; LocalSGD replicates the whole model."""
    mixed = dag_prices(chain_edges(2), micro_batch_sizes=[1, 2])
    with pytest.raises(InvalidOption, match="micro-batches of 1, 2 samples"):
        list(list_reads(mixed, build_gpipe(mixed), WeightPolicy()))
    uneven = dag_prices(chain_edges(2), 2, devices=[(0, 1), (2,)], micro_batch_sizes=[2, 2])
    with pytest.raises(InvalidOption, match=r"\[1, 2\] replicas"):
        replay_schedule(
            uneven,
            build_gpipe(uneven),
            WeightPolicy(name="local"),
            SumModel(),
            Sgd(rate=Fraction(1)),
        )
