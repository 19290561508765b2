"""Ways to break a legal plan. Every mutant is illegal by construction: each operator says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from graphplan.nouns.plan import Plan
from graphplan.nouns.prices import Bucket
from graphplan.nouns.schedule import parse_program
from graphplan.nouns.task import Instruction, Task, Transfer
from tests.pure.strategies import with_buckets

Line = list[str]
replace = msgspec.structs.replace


Make = Callable[[Plan], Iterator[tuple[Plan, str]]]


class Operator(NamedTuple):
    """A way to break plans, and the rules of which one must be named for each mutant."""

    name: str
    make: Make
    rules: frozenset[str]


OPERATORS: list[Operator] = []


def breaks(*rules: str) -> Callable[[Make], Make]:
    """Register an operator whose mutants break one of these rules."""

    def register(make: Make) -> Make:
        OPERATORS.append(Operator(make.__name__, make, frozenset(rules)))
        return make

    return register


# -- lines ---------------------------------------------------------------------------------------


def groups(plan: Plan) -> list[tuple[int, ...]]:
    """Groups of devices that host stages."""
    return list(dict.fromkeys(stage.devices for stage in plan.prices.stages))


def read(plan: Plan, device: int) -> list[Instruction]:
    """The instructions of a device."""
    return list(parse_program(plan.program[device]).instructions_by_device[0])


def write(plan: Plan, devices: tuple[int, ...], line: list[Instruction]) -> Plan:
    """The plan with this line on all of these devices."""
    lines = list(plan.program)
    for device in devices:
        lines[device] = " ".join(map(str, line))
    return replace(plan, program=tuple(lines))


def edit_lines(plan: Plan) -> Iterator[tuple[tuple[int, ...], list[Instruction]]]:
    """Every group with its line; replicas are changed alike, so that they stay equal."""
    for group in groups(plan):
        yield group, read(plan, group[0])


def place_of(line: list[Instruction], *texts: str) -> int:
    """Position of the first of these instructions that the line has."""
    names = [str(each) for each in line]
    return next((names.index(text) for text in texts if text in names), -1)


@breaks("task-once", "update")
def drop_a_task(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Every task is needed."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task):
                yield write(plan, group, line[:i] + line[i + 1 :]), f"drop {each}"


@breaks("task-once")
def repeat_a_task(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """No task may run twice."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task):
                yield write(plan, group, [*line[:i], each, *line[i:]]), f"repeat {each}"


@breaks("task-order")
def swap_micro_batches(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Forwards of a stage run in the order of its micro-batches; so do its backwards."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind in "FBI":
                j = place_of(line, str(replace(each, micro_batch=each.micro_batch + 1)))
                if j >= 0:
                    yield write(plan, group, exchange(line, i, j)), f"swap {each} and the next"


@breaks("task-order")
def swap_a_task_with_its_need(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """F comes before B and I of its micro-batch, I before W."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind in "BIW":
                needed = replace(each, kind="I" if each.kind == "W" else "F")
                j = place_of(line, str(needed))
                yield write(plan, group, exchange(line, j, i)), f"swap {needed} and {each}"


def exchange(line: list[Instruction], i: int, j: int) -> list[Instruction]:
    """The line with two instructions exchanged."""
    changed = list(line)
    changed[i], changed[j] = changed[j], changed[i]
    return changed


@breaks("task-order")
def swap_neighbours_on_a_device(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A stage that reads from another one on the same device comes after it."""
    shared = {
        (src, dst)
        for src, dst in plan.prices.edges
        if plan.prices.stages[src].devices == plan.prices.stages[dst].devices
    }
    for group, line in edit_lines(plan):
        for src, dst in sorted(shared):
            for m in range(plan.prices.num_micro_batches(src)):
                for first, second in ((f"{src}F{m}", f"{dst}F{m}"), (f"{dst}B{m}", f"{src}B{m}")):
                    i, j = place_of(line, first), place_of(line, second)
                    if i >= 0 and j >= 0:
                        yield write(plan, group, exchange(line, i, j)), f"swap {first} and {second}"


@breaks("foreign")
def run_what_does_not_exist(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Micro-batches and stages end somewhere."""
    for group, line in edit_lines(plan):
        yield write(plan, group, [*line, Task(len(plan.stages.stages), "F", 0)]), "a stage too many"
        for i, each in enumerate(line):
            if isinstance(each, Task):
                count = plan.prices.num_micro_batches(each.stage)
                far = replace(each, micro_batch=each.micro_batch + count)
                yield write(plan, group, exchange_for(line, i, far)), f"{each} -> {far}"


def exchange_for(line: list[Instruction], i: int, new: Instruction) -> list[Instruction]:
    """The line with one instruction replaced."""
    return [*line[:i], new, *line[i + 1 :]]


@breaks("foreign")
def move_a_task_to_another_device(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A device does not run stages that it does not host."""
    for group, line in edit_lines(plan):
        for other in groups(plan):
            if other != group:
                task = next(each for each in line if isinstance(each, Task))
                yield (
                    write(plan, other, [task, *read(plan, other[0])]),
                    f"run {task} on devices {other} too",
                )


@breaks("foreign")
def run_a_backward_of_a_frozen_stage(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A stage that needs no backward has only forwards."""
    for s, stage in enumerate(plan.prices.stages):
        if not stage.needs_backward:
            for kind in "BIWRU":
                line = [*read(plan, stage.devices[0]), Task(s, kind, 0)]  # type: ignore[arg-type]
                yield write(plan, stage.devices, line), f"add {s}{kind}0"


@breaks("task-once")
def run_both_kinds_of_backward(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """B is the whole backward: I or W beside it do its work again."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind == "B":
                for kind in "IW":
                    half = replace(each, kind=kind)
                    yield write(plan, group, [*line[: i + 1], half, *line[i + 1 :]]), f"add {half}"


@breaks("replica-lines")
def change_one_replica(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Replicas run equal lines."""
    for group, line in edit_lines(plan):
        if len(group) > 1:
            for i, (one, two) in enumerate(pairwise(line)):
                changed = exchange(line, i, i + 1)
                yield write(plan, group[1:2], changed), f"swap {one} and {two} on {group[1]}"
            yield write(plan, group[1:2], line[:-1]), f"shorten {group[1]}"


@breaks("program-text")
def change_the_text(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """One line for each device, of instructions that can be read."""
    yield replace(plan, program=plan.program[:-1]), "drop a line"
    yield replace(plan, program=(*plan.program, "")), "add a line"
    for text in ("2X0", "2F", "F0", "02F0", "0>1F", "0>F1", "-1F0", "0F0,", "0 F0", "0>1W0"):
        yield replace(plan, program=(f"{plan.program[0]} {text}", *plan.program[1:])), text
    yield replace(plan, program=(f"{plan.program[0]}\n0F0", *plan.program[1:])), "a line break"


# -- transfers -----------------------------------------------------------------------------------


@breaks("transfer-ends")
def drop_one_end(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Both ends must post a transfer."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Transfer):
                yield write(plan, group, line[:i] + line[i + 1 :]), f"drop {each} on {group}"


@breaks("transfer-ends")
def repeat_one_end(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Each end posts a transfer once."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Transfer):
                yield write(plan, group, [*line[:i], each, *line[i:]]), f"repeat {each} on {group}"


@breaks("deadlock", "transfer-order")
def reverse_two_ends(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Operations of a link complete in the order posted, which must be the same at both ends."""
    for group, line in edit_lines(plan):
        posts = [(i, each) for i, each in enumerate(line) if isinstance(each, Transfer)]
        for k, (i, one) in enumerate(posts):
            for j, two in posts[k + 1 : k + 4]:
                same_way = one.src < one.dst and two.src < two.dst
                same_way |= one.src > one.dst and two.src > two.dst
                if same_way and (one.src, one.dst) == (two.src, two.dst):
                    yield write(plan, group, exchange(line, i, j)), f"reverse {one} and {two}"


@breaks("transfer-order")
def send_too_early(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A tensor can be sent when its task has made it."""
    for group, line in edit_lines(plan):
        hosted = set(plan.prices.stages_by_device[group[0]])
        for i, each in enumerate(line):
            if isinstance(each, Transfer) and each.src in hosted:
                m = each.micro_batch
                made = [f"{each.src}F{m}"] if each.kind == "F" else []
                made += [f"{each.src}B{m}", f"{each.src}I{m}"] if each.kind == "B" else []
                j = place_of(line, *made)
                changed = line[:i] + line[i + 1 :]
                yield write(plan, group, [*changed[:j], each, *changed[j:]]), f"{each} too early"


@breaks("transfer-order")
def receive_too_late(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A receive that is posted behind the task that waits for it never comes."""
    for group, line in edit_lines(plan):
        hosted = set(plan.prices.stages_by_device[group[0]])
        for i, each in enumerate(line):
            if isinstance(each, Transfer) and each.dst in hosted:
                sizes = [stage.micro_batch_size for stage in plan.prices.stages]
                m = each.micro_batch * sizes[each.src] // sizes[each.dst]
                readers = [f"{each.dst}F{m}"] if each.kind == "F" else []
                readers += [f"{each.dst}B{m}", f"{each.dst}I{m}"] if each.kind == "B" else []
                j = place_of(line, *readers)
                changed = [*line[:i], *line[i + 1 : j + 1], each, *line[j + 1 :]]
                yield write(plan, group, changed), f"{each} too late"


@breaks("foreign")
def send_what_nobody_needs(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Transfers follow the edges between different devices, for the batch's micro-batches."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Transfer):
                for wrong in (
                    replace(each, kind="B" if each.kind == "F" else "F"),
                    replace(each, src=each.dst, dst=each.src),
                    replace(each, micro_batch=each.micro_batch + 1000),
                    replace(each, dst=each.src),
                ):
                    yield write(plan, group, exchange_for(line, i, wrong)), f"{each} -> {wrong}"
                break


@breaks("deadlock")
def wait_in_a_circle(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """On an edge a -> b where b runs F1 before its first backward, a runs its first backward
    before F1: a waits for the gradient of 0, b for the activations of 1."""
    prices = plan.prices
    for a, b in prices.backward_edges:
        own, other = (
            read(plan, prices.stages[a].devices[0]),
            read(plan, prices.stages[b].devices[0]),
        )
        apart = prices.stages[a].devices != prices.stages[b].devices
        alike = prices.stages[a].micro_batch_size == prices.stages[b].micro_batch_size
        back = place_of(own, f"{a}B0", f"{a}I0")
        next_forward = place_of(own, f"{a}F1")
        blocked = place_of(other, f"{b}F1")
        is_late = 0 <= blocked < place_of(other, f"{b}B0", f"{b}I0")
        if apart and alike and is_late and 0 <= next_forward < back:
            needed = [each for each in own if is_gradient(each, a, 0)]
            moved = [*needed, own[back]]
            rest = [each for each in own if each not in moved]
            at = place_of(rest, f"{a}F1")
            sends = [each for each in rest if isinstance(each, Transfer) and each.src == a]
            assert sends
            yield (
                write(plan, prices.stages[a].devices, [*rest[:at], *moved, *rest[at:]]),
                f"run {own[back]} before {a}F1",
            )


def is_gradient(each: Instruction, stage: int, micro_batch: int) -> bool:
    """Whether an instruction receives gradients of a micro-batch."""
    return isinstance(each, Transfer) and (each.dst, each.kind, each.micro_batch) == (
        stage,
        "B",
        micro_batch,
    )


# -- updates and versions ------------------------------------------------------------------------


@breaks("update")
def update_too_early(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """R and U cover backwards that have run."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind in "RU":
                ends = [
                    k
                    for k in range(i)
                    if isinstance(line[k], Task)
                    and str(line[k])
                    in (f"{each.stage}B{each.micro_batch}", f"{each.stage}W{each.micro_batch}")
                ]
                j = ends[-1]
                yield (
                    write(plan, group, [*line[:j], each, *line[j:i], *line[i + 1 :]]),
                    f"{each} before {line[j]}",
                )


@breaks("update")
def exchange_reduce_and_update(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Gradients are reduced before the update; local weights are averaged after it."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind == "R":
                j = place_of(line, str(replace(each, kind="U")))
                yield write(plan, group, exchange(line, i, j)), f"exchange {each} and its U"


@breaks("update")
def reduce_without_replicas(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A stage on one device has nothing to reduce."""
    for group, line in edit_lines(plan):
        if len(group) == 1:
            for i, each in enumerate(line):
                if isinstance(each, Task) and each.kind == "U":
                    extra = replace(each, kind="R")
                    yield write(plan, group, [*line[:i], extra, *line[i:]]), f"add {extra}"


@breaks("update")
def update_at_the_wrong_micro_batch(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Updates are numbered by the last micro-batch that they cover."""
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind in "RU" and each.micro_batch:
                wrong = replace(each, micro_batch=each.micro_batch - 1)
                if str(wrong) not in map(str, line):
                    yield write(plan, group, exchange_for(line, i, wrong)), f"{each} -> {wrong}"


@breaks("version")
def update_one_forward_later(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Under an asynchronous policy a forward must not miss an update in front of it."""
    if plan.policy.is_synchronous:
        return
    for group, line in edit_lines(plan):
        for i, each in enumerate(line):
            if isinstance(each, Task) and each.kind == "U":
                later = [
                    k
                    for k in range(i + 1, len(line))
                    if isinstance(line[k], Task) and str(line[k]).startswith(f"{each.stage}F")
                ]
                if later:
                    k = later[0]
                    changed = [*line[:i], *line[i + 1 : k + 1], each, *line[k + 1 :]]
                    yield write(plan, group, changed), f"{each} behind {line[k]}"


@breaks("policy", "version", "update")
def change_the_policy(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Warm-ups decrease along edges, one for each stage; updates divide the batch."""
    policy = plan.policy
    if policy.is_synchronous:
        if policy.name == "flush" and plan.prices.num_micro_batches(0) > 1:
            zeros = (0,) * len(plan.prices.stages)
            yield replace(plan, policy=replace(policy, name="stash", warmups=zeros)), "to stash"
        return
    warmups = policy.warmups
    yield replace(plan, policy=replace(policy, warmups=warmups[:-1])), "a warm-up too few"
    yield replace(plan, policy=replace(policy, warmups=(*warmups, 0))), "a warm-up too many"
    for src, dst in plan.prices.edges:
        more = tuple(warmups[src] + 1 if s == dst else w for s, w in enumerate(warmups))
        yield replace(plan, policy=replace(policy, warmups=more)), f"more at {dst} than at {src}"
    for accumulate in (0, 3, 1 << 40):
        yield replace(plan, policy=replace(policy, accumulate=accumulate)), f"every {accumulate}"
    yield replace(plan, policy=replace(policy, name="flush")), "to flush"
    if policy.name == "2bw":
        large = tuple(w + policy.accumulate for w in warmups)
        yield replace(plan, policy=replace(policy, warmups=large)), "warm-ups over accumulate"


# -- stages --------------------------------------------------------------------------------------


def change_stage(plan: Plan, s: int, **changes: Any) -> Plan:
    """The plan with one stage changed."""
    stages = list(plan.stages.stages)
    stages[s] = replace(stages[s], **changes)
    return replace(plan, stages=replace(plan.stages, stages=tuple(stages)))


@breaks("stage-edges", "stage-convex", "stage-acyclic", "stage-order")
def move_an_op(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """The ops of a stage are a chain of three: moving one makes a value cross that no stage edge
    carries."""
    for s, stage in enumerate(plan.stages.stages):
        for t, other in enumerate(plan.stages.stages):
            for op in stage.ops if s != t else ():
                without = tuple(each for each in stage.ops if each != op)
                moved = change_stage(plan, s, ops=without)
                yield change_stage(moved, t, ops=(*other.ops, op)), f"move {op} to stage {t}"


@breaks("op-once")
def lose_or_repeat_an_op(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Every op is in exactly one stage."""
    last = len(plan.stages.stages) - 1
    for s, stage in enumerate(plan.stages.stages):
        for op in stage.ops:
            without = tuple(each for each in stage.ops if each != op)
            yield change_stage(plan, s, ops=without), f"lose {op}"
            other = 0 if s == last else last
            yield (
                change_stage(plan, other, ops=(*plan.stages.stages[other].ops, op)),
                f"repeat {op}",
            )
        yield change_stage(plan, s, ops=(*stage.ops, "unknown")), f"unknown op in {s}"
        yield change_stage(plan, s, ops=()), f"empty {s}"


@breaks("stage-edges", "price-edges")
def change_a_stage_edge(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Stage edges are the values that pass between stages, each once."""
    edges = plan.stages.edges
    for i, edge in enumerate(edges):
        for changed, deed in (
            (edges[:i] + edges[i + 1 :], "drop"),
            (edges + (edge,), "repeat"),
            ((*edges[:i], replace(edge, value="unknown"), *edges[i + 1 :]), "rename"),
            ((*edges[:i], replace(edge, needs_grad=not edge.needs_grad), *edges[i + 1 :]), "turn"),
        ):
            yield (
                replace(plan, stages=replace(plan.stages, edges=changed)),
                f"{deed} {edge.src} -> {edge.dst}",
            )


@breaks("stage-edges")
def add_an_op_edge(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """An op edge between two stages is a stage edge: here a first op feeds another stage."""
    position = {op: i for i, op in enumerate(plan.model.ops)}
    for s, stage in enumerate(plan.stages.stages):
        for other in plan.stages.stages[s + 1 :]:
            edge = (position[stage.ops[0]], position[other.ops[0]])
            edges = tuple(sorted((*plan.model.edges, edge)))
            yield replace(plan, model=replace(plan.model, edges=edges)), f"add op edge {edge}"


@breaks("device-exists", "price-stages")
def move_a_stage(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Stages stand on devices of the cluster, those that were priced."""
    num = len(plan.program)
    for s, stage in enumerate(plan.stages.stages):
        far = tuple(device + num for device in stage.devices)
        if not any(s != t and stage.devices == x.devices for t, x in enumerate(plan.stages.stages)):
            yield change_stage(plan, s, devices=far), f"stage {s} on devices {far}"


@breaks("price-stages", "replica-split")
def change_a_micro_batch_size(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Prices and stages agree on the size; replicas split it evenly."""
    for s, stage in enumerate(plan.stages.stages):
        for size in (stage.micro_batch_size + 1, 2 * stage.micro_batch_size):
            yield change_stage(plan, s, micro_batch_size=size), f"size {size} at stage {s}"


# -- prices --------------------------------------------------------------------------------------


def change_price(plan: Plan, s: int, **changes: Any) -> Plan:
    """The plan with the price of one stage changed."""
    stages = list(plan.prices.stages)
    stages[s] = replace(stages[s], **changes)
    return replace(plan, prices=replace(plan.prices, stages=tuple(stages)))


@breaks("price-values", "price-weights", "zero", "prediction", "price-stages", "price-edges")
def change_a_price(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Seconds and bytes are not negative; peaks follow from them; devices are the stage's."""
    for s, stage in enumerate(plan.prices.stages):
        yield change_price(plan, s, forward_s=-1.0), f"negative forward of {s}"
        yield change_price(plan, s, weight_grad_s=float("nan")), f"weight_grad_s of {s} is NaN"
        yield change_price(plan, s, workspace_bytes=-1), f"negative workspace of {s}"
        yield change_price(plan, s, fixed_bytes=1 << 200), f"immense stage {s}"
        kept = stage.saved_bytes + 1
        yield change_price(plan, s, saved_for_weights_bytes=kept), f"{s} keeps more than it saves"
        yield change_price(plan, s, fixed_bytes=stage.fixed_bytes + 1), f"one byte more at {s}"
        large = stage.fixed_bytes // 2 + 1
        yield change_price(plan, s, trained_bytes=large), f"no room for a gradient at {s}"
        if stage.needs_backward and s in {src for src, _ in plan.prices.backward_edges}:
            yield change_price(plan, s, needs_backward=False), f"{s} needs no backward"
        if len(stage.devices) > 1:
            yield change_price(plan, s, devices=stage.devices[::-1]), f"devices of {s} turned"


@breaks("price-buckets")
def change_the_buckets(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A gradient is reduced before it is complete, after the backward, twice, or by nobody."""
    for s, price in enumerate(plan.prices.stages):
        if price.reduction is None:
            continue
        buckets = price.reduction.buckets
        for k, bucket in enumerate(buckets):
            for name in ("backward_s", "weight_grad_s"):
                for moment, what in ((-0.1, "before"), (price.backward_s + 9, "after")):
                    moved = replace(bucket, **{name: moment})
                    yield (
                        _rebucket(plan, s, (*buckets[:k], moved, *buckets[k + 1 :])),
                        (f"bucket {k} of stage {s} is complete {what} its backward"),
                    )
            rest = (*buckets[:k], *buckets[k + 1 :])
            yield _rebucket(plan, s, rest), f"bucket {k} of stage {s} is not reduced"
            yield (
                _rebucket(plan, s, (*buckets, bucket)),
                f"bucket {k} of stage {s} is reduced twice",
            )
        yield _rebucket(plan, s, buckets[::-1]), f"the last bucket of stage {s} goes first"
        yield change_price(plan, s, reduction=None), f"stage {s} reduces nothing"


def _rebucket(plan: Plan, s: int, buckets: tuple[Bucket, ...]) -> Plan:
    law = plan.prices.stages[s].reduction
    assert law is not None
    return change_price(plan, s, reduction=replace(law, buckets=buckets))


@breaks("zero")
def lose_a_share(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A share of the states is on no replica, or a policy keeps versions beside it."""
    for s, (stage, price) in enumerate(zip(plan.stages.stages, plan.prices.stages, strict=True)):
        if stage.zero:
            # Adam: weights, gradient, and half of two states.
            yield (
                change_price(plan, s, fixed_bytes=3 * price.trained_bytes - 1),
                (f"nobody updates a share of stage {s}"),
            )
        elif len(stage.devices) > 1 and plan.policy.name != "flush":
            yield change_stage(plan, s, zero=1), f"stage {s} shares under {plan.policy.name}"


@breaks("price-buckets")
def add_buckets_where_none_belong(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """A stage on one device, or one that is averaged, reduces gradients."""
    for s, price in enumerate(plan.prices.stages):
        if len(price.devices) == 1 or plan.policy.name == "local":
            law = with_buckets(price, [0.5], [0.1]).reduction
            yield change_price(plan, s, reduction=law), f"stage {s} has a bucket"


@breaks("prediction")
def predict_a_step_that_waits_for_no_bucket(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """R ends before its last bucket has arrived."""
    for s, price in enumerate(plan.prices.stages):
        if price.reduction is not None:
            first, last = price.reduction.buckets
            slow = (first, replace(last, seconds=plan.prediction.step_s))
            yield _rebucket(plan, s, slow), f"nobody waits for the last bucket of stage {s}"


@breaks("price-transfers", "price-edges")
def change_a_transfer_price(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Every edge between different devices has a transfer that reaches its readers."""
    prices = plan.prices
    for i, each in enumerate(prices.transfers):
        message = each.messages[0]
        for changed, deed in (
            ((), "drop"),
            ((each, each), "repeat"),
            ((replace(each, backward=not each.backward),), "turn"),
            ((replace(each, messages=(message, *each.messages)),), "repeat a message of"),
        ):
            transfers = (*prices.transfers[:i], *changed, *prices.transfers[i + 1 :])
            yield (
                replace(plan, prices=replace(prices, transfers=transfers)),
                f"{deed} {each.src}>{each.dst}",
            )
    for i, (src, dst) in enumerate(prices.backward_edges):
        fewer = prices.backward_edges[:i] + prices.backward_edges[i + 1 :]
        yield (
            replace(plan, prices=replace(prices, backward_edges=fewer)),
            f"no gradient {dst}>{src}",
        )


@breaks("price-batch")
def change_the_batch(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Prices are for the training's batch."""
    for size in (plan.training.batch_size + 1, 2 * plan.training.batch_size):
        yield replace(plan, training=replace(plan.training, batch_size=size)), f"batch {size}"


@breaks("device-exists", "price-memory")
def change_the_cluster(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """The plan uses the devices that the cluster has, and no more of their memory."""
    cluster = plan.cluster
    node = cluster.nodes[0]
    fewer = (replace(node, devices=node.devices[:-1]), *cluster.nodes[1:])
    yield replace(plan, cluster=replace(cluster, nodes=fewer)), "a device less"
    more = (replace(node, devices=(*node.devices, node.devices[0])), *cluster.nodes[1:])
    yield replace(plan, cluster=replace(cluster, nodes=more)), "a device more"
    yield replace(plan, cluster=replace(cluster, usable_memory=0.5)), "less memory"


# -- memory, prediction, bound -------------------------------------------------------------------


@breaks("memory")
def shrink_the_memory(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """One byte less than the peak does not suffice."""
    for device, peak in enumerate(plan.prediction.peak_bytes_by_device):
        limits = list(plan.prices.memory_bytes_by_device)
        limits[device] = peak - 1
        prices = replace(plan.prices, memory_bytes_by_device=tuple(limits))
        yield replace(plan, prices=prices), f"{peak - 1} bytes on device {device}"


@breaks("prediction")
def predict_other_peaks(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Peaks are exact: they follow from the order alone."""
    peaks = plan.prediction.peak_bytes_by_device
    for device, peak in enumerate(peaks):
        for wrong in (peak - 1, peak + 1):
            changed = (*peaks[:device], wrong, *peaks[device + 1 :])
            prediction = replace(plan.prediction, peak_bytes_by_device=changed)
            yield replace(plan, prediction=prediction), f"peak {wrong} on device {device}"
    prediction = replace(plan.prediction, peak_bytes_by_device=peaks[:-1])
    yield replace(plan, prediction=prediction), "a peak too few"


@breaks("prediction", "bound")
def predict_a_shorter_step(plan: Plan) -> Iterator[tuple[Plan, str]]:
    """No step beats its bound, or its busiest device."""
    for step_s in (plan.prediction.step_s * 0.999, 0.0, -1.0):
        prediction = replace(plan.prediction, step_s=step_s)
        yield replace(plan, prediction=prediction), f"step {step_s}"
    prediction = replace(plan.prediction, step_s=1.5)
    if plan.policy.is_synchronous:
        free = replace(plan.bound, step_s=0.0)
        yield replace(plan, prediction=prediction, bound=free), "shorter than its work"
    bound = replace(plan.bound, step_s=plan.bound.step_s * (1 + 1e-6))
    yield replace(plan, bound=bound), "bound above the step"
