"""The simulator on programs small enough to check by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from graphplan.errors import InvalidProgram
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.nouns.schedule import Program, parse_program
from graphplan.nouns.task import Task
from graphplan.nouns.timeline import Peak, Timeline
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.simulate import (
    predict_step,
    simulate_program,
)
from tests.pure.strategies import branch_edges, chain_prices, dag_prices

FLUSH = WeightPolicy()


def draw(timeline: Timeline) -> str:
    """Spans as text: one line for each place, `name@start-end`."""
    lines: dict[str, list[str]] = {}
    for span in timeline.spans:
        text = f"{span.name}@{span.start_s:g}-{span.end_s:g}"
        lines.setdefault(str(span.place), []).append(text)
    return "\n".join(f"{place}: {' '.join(each)}" for place, each in sorted(lines.items()))


@pytest.mark.parametrize("build", [build_gpipe, build_1f1b])
@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(1, 3), (2, 2), (4, 8), (8, 5)])
def test_chain_closed_form(build: object, num_stages: int, num_micro_batches: int) -> None:
    """GPipe and 1F1B on a balanced chain take (M + S - 1)(f + b)."""
    priced = chain_prices(num_stages, num_micro_batches, forward_s=1.0, backward_s=2.0)
    program = lower_schedule(priced, build(priced), FLUSH)  # type: ignore[operator]
    expected = (num_micro_batches + num_stages - 1) * 3.0
    assert simulate_program(priced, program).makespan_s == expected


def test_1f1b_ticks() -> None:
    """Unit times: F(s,i) starts at s+i while i < S-s, else at 2i+s; B(s,i) at 2i+2S-1-s."""
    num_stages, num_micro_batches = 5, 9
    priced = chain_prices(num_stages, num_micro_batches)
    program = lower_schedule(priced, build_1f1b(priced), FLUSH)
    spans = simulate_program(priced, program).spans
    start_by_name = {span.name: span.start_s for span in spans}
    for s in range(num_stages):
        for i in range(num_micro_batches):
            assert start_by_name[f"{s}F{i}"] == (s + i if i < num_stages - s else 2 * i + s)
            assert start_by_name[f"{s}B{i}"] == 2 * i + 2 * num_stages - 1 - s


@pytest.mark.parametrize(("branches", "length"), [(2, 1), (2, 3), (4, 2)])
def test_dag_closed_form_and_in_flight(branches: int, length: int) -> None:
    """1F1B on a DAG takes 2N + 2(D - 1) and keeps h(s) + 1 micro-batches at stage s."""
    priced = dag_prices(branch_edges(branches, length), 10, saved_bytes=1)
    program = lower_schedule(priced, build_1f1b(priced), FLUSH)
    timeline = simulate_program(priced, program)
    assert timeline.makespan_s == 2 * 10 + 2 * length
    assert [peak.bytes for peak in timeline.peaks] == [h + 1 for h in priced.heights]


def test_transfers_overlap_with_compute() -> None:
    """A message occupies its channel for its seconds and arrives one latency later."""
    priced = chain_prices(2, 2, forward_s=2.0, transfer_s=1.0, latency_s=0.5)
    program = parse_program(
        "0F0 0>1F0 0F1 0>1F1 1>0B0 0B0 1>0B1 0B1\n0>1F0 0>1F1 1F0 1B0 1>0B0 1F1 1B1 1>0B1"
    )
    assert draw(simulate_program(priced, program)) == "\n".join(
        [
            "0: 0F0@0-2 0F1@2-4 0B0@8-9 0B1@11-12",
            "1: 1F0@3.5-5.5 1B0@5.5-6.5 1F1@6.5-8.5 1B1@8.5-9.5",
            "d0>d1: 0>1F0@2-3 0>1F1@4-5",
            "d1>d0: 1>0B0@6.5-7.5 1>0B1@9.5-10.5",
        ]
    )


def test_a_late_receive_delays_its_message() -> None:
    """A message starts when both ends have posted it."""
    priced = chain_prices(2, 1, transfer_s=1.0)
    early = parse_program("0F0 0>1F0 1>0B0 0B0\n0>1F0 1F0 1B0 1>0B0")
    late = dag_prices([(0, 2), (1, 2)], 1, devices=[(0,), (1,), (1,)], transfer_s=1.0)
    program = parse_program("0F0 0>2F0 2>0B0 0B0\n1F0 0>2F0 2F0 2B0 2>0B0 1B0")
    late = msgspec.structs.replace(
        late,
        stages=(
            late.stages[0],
            msgspec.structs.replace(late.stages[1], forward_s=5.0),
            late.stages[2],
        ),
    )
    assert simulate_program(priced, early).makespan_s == 1 + 1 + 1 + 1 + 1 + 1
    spans = {span.name: span for span in simulate_program(late, program).spans}
    assert (spans["0>2F0"].start_s, spans["0>2F0"].end_s) == (5.0, 6.0)


def share_link(*, channel: str) -> PricedStages:
    """Stages 0 and 1 feed stages 2 and 3 from one node; each message takes 3 seconds."""
    stages = tuple(
        StagePrice(
            devices=(s,),
            micro_batch_size=1,
            forward_s=1.0,
            backward_s=0.0,
            input_grad_s=0.0,
            weight_grad_s=0.0,
            needs_backward=False,
        )
        for s in range(4)
    )
    transfers = tuple(
        TransferPrice(
            src=s,
            dst=s + 2,
            backward=False,
            messages=(
                Message(
                    src=s,
                    dst=s + 2,
                    bytes=3,
                    seconds=3.0,
                    latency_s=0.5,
                    channel=channel or f"d{s}>d{s + 2}",
                ),
            ),
        )
        for s in range(2)
    )
    return PricedStages(
        batch_size=2,
        stages=stages,
        edges=((0, 2), (1, 3)),
        backward_edges=(),
        transfers=transfers,
        memory_bytes_by_device=(100,) * 4,
    )


def test_link_contention() -> None:
    """On a shared channel messages queue in posting order, ties by device; apart they overlap."""
    program = parse_program(
        "0F0 0>2F0 0F1 0>2F1\n1F0 1>3F0 1F1 1>3F1\n0>2F0 0>2F1 2F0 2F1\n1>3F0 1>3F1 3F0 3F1"
    )
    shared = simulate_program(share_link(channel="n0>>"), program)
    assert draw(shared) == "\n".join(
        [
            "0: 0F0@0-1 0F1@1-2",
            "1: 1F0@0-1 1F1@1-2",
            "2: 2F0@4.5-5.5 2F1@10.5-11.5",
            "3: 3F0@7.5-8.5 3F1@13.5-14.5",
            "n0>>: 0>2F0@1-4 1>3F0@4-7 0>2F1@7-10 1>3F1@10-13",
        ]
    )
    assert shared.critical_path == ("0F0", "0>2F0", "1>3F0", "0>2F1", "1>3F1", "3F1")
    apart = simulate_program(share_link(channel=""), program)
    assert apart.makespan_s == 8.5


def test_an_all_reduce_waits_for_all_replicas() -> None:
    """R starts on every replica when the last one has reached it."""
    priced = chain_prices(2, 1, devices=[(0, 1), (2,)], transfer_s=2.0, reduce_s=3.0, update_s=1.0)
    slow = priced.transfers[1].messages[1]
    messages = (priced.transfers[1].messages[0], msgspec.structs.replace(slow, seconds=5.0))
    back = msgspec.structs.replace(priced.transfers[1], messages=messages)
    priced = msgspec.structs.replace(priced, transfers=(priced.transfers[0], back))
    line = "0F0 0>1F0 1>0B0 0B0 0R0 0U0"
    timeline = simulate_program(priced, parse_program(f"{line}\n{line}\n0>1F0 1F0 1B0 1>0B0 1U0"))
    assert draw(timeline).split("\n")[:3] == [
        "0: 0F0@0-1 0B0@5-6 0R0@10-13 0U0@13-14",
        "1: 0F0@0-1 0B0@9-10 0R0@10-13 0U0@13-14",
        "2: 1F0@2-3 1B0@3-4 1U0@4-5",
    ]


def test_unequal_micro_batches() -> None:
    """A task waits for every message that holds its samples, and for no other."""
    priced = chain_prices(
        2, 1, micro_batch_sizes=[2, 4], transfer_s=1.0, backward_s=1.0, batch_size=4
    )
    program = parse_program("0F0 0>1F0 0F1 0>1F1 1>0B0 0B0 0B1\n0>1F0 0>1F1 1F0 1B0 1>0B0")
    assert draw(simulate_program(priced, program)) == "\n".join(
        [
            "0: 0F0@0-1 0F1@1-2 0B0@6-7 0B1@7-8",
            "1: 1F0@3-4 1B0@4-5",
            "d0>d1: 0>1F0@1-2 0>1F1@2-3",
            "d1>d0: 1>0B0@5-6",
        ]
    )


def test_memory_of_a_split_backward() -> None:
    """Saved bytes go in two steps, at the ends of I and W; workspace only while a task runs."""
    priced = chain_prices(
        1, 2, fixed_bytes=100, saved_bytes=10, saved_for_weights_bytes=4, workspace_bytes=1,
        backward_s=2.0,
    )  # fmt: skip
    timeline = simulate_program(priced, parse_program("0F0 0F1 0I0 0I1 0W0 0W1 0U1"))
    assert timeline.peaks == (
        Peak(bytes=121, at_s=1.0, parts={"fixed": 100, "workspace": 1, "0F0": 10, "0F1": 10}),
    )
    (curve,) = timeline.memory
    assert dict(zip(curve.times_s, curve.bytes, strict=True)) == {
        0.0: 111, 1.0: 121, 3.0: 115, 4.0: 109, 5.0: 105, 6.0: 100,
    }  # fmt: skip


def test_peak_names_what_is_kept() -> None:
    """The parts of a peak name the micro-batches in flight, with what is left of them."""
    priced = chain_prices(1, 3, saved_bytes=10, saved_for_weights_bytes=4)
    timeline = simulate_program(priced, parse_program("0F0 0I0 0F1 0F2 0W0 0I1 0W1 0I2 0W2"))
    assert timeline.peaks[0].parts == {"0F0": 4, "0F1": 10, "0F2": 10}


def test_stages_without_backward_save_nothing() -> None:
    """A frozen stage holds its workspace while it runs, and no activations."""
    priced = chain_prices(2, 2, needs_backward=[False, True], workspace_bytes=3, saved_bytes=9)
    program = lower_schedule(priced, build_gpipe(priced), FLUSH)
    assert [peak.bytes for peak in simulate_program(priced, program).peaks] == [3, 21]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0F0 0>1F0 1>0B0 0B0 0F1 0>1F1 1>0B1 0B1\n"
            "0>1F0 0>1F1 1F0 1F1 1B0 1>0B0 1B1 1>0B1",
            "Deadlock: 6 of 8 tasks never run. device 0 waits at 0B0 for 1>0B0, which device 1"
            " posts only after 1F1; device 1 waits at 1F1 for 0>1F1, which device 0 posts only"
            " after 0B0.",
        ),
        (
            "0F0 0>1F0 0F1 0>1F1\n0>1F1 0>1F0 1F0 1F1",
            "Deadlock: device 0 sends 0>1F0 before 0>1F1, device 1 receives 0>1F1 before 0>1F0.",
        ),
        (
            "0F0 0>1F0\n1F0 0>1F0",
            "Deadlock: 1 of 2 tasks never run. device 1 waits at 1F0 for 0>1F0, which it posts only"
            " behind that task.",
        ),
        ("0B0 0F0\n", "device 0 runs 0B0, which needs 0F0; the device runs 0F0 only later."),
        ("0F0 0W0\n", "Deadlock: device 0 runs 0W0, which needs 0I0; the device does not run 0I0."),
        ("0F0 0>1F0\n1F0", "Device 0 sends 0>1F0 to device 1, which never receives it."),
        ("0F0\n0>1F0 1F0", "Device 1 receives 0>1F0 from device 0, which never sends it."),
        ("0F0\n1F0", "which needs 0>1F0 from device 0; the program does not transfer it."),
        ("0>1F0 0F0\n0>1F0 1F0", "Device 0 posts 0>1F0 before it has run 0F0."),
        ("0F0 0>1F0 0>1F0\n0>1F0 1F0", "Device 0 sends 0>1F0 twice."),
        ("0F0 0F0\n", "Device 0 runs 0F0 twice"),
        ("1F0\n", "Device 0 runs 1F0, but stage 1 is on devices [1]."),
        ("0F0", "The program has 1 devices, the prices have 2."),
        ("7F0\n", "The program names stage 7; there are 2 stages."),
        ("0F99999\n", "The program has a micro-batch 99999 of stage 0"),
        ("0F0 0>1B0\n", "Device 0 posts 0>1B0, whose direction has the other kind."),
        ("0F0\n0R0", "Device 1 runs 0R0, but stage 0 is on devices [0]."),
    ],
)  # fmt: skip
def test_programs_that_cannot_run(text: str, message: str) -> None:
    """A program that cannot run to its end is refused with who waits for whom."""
    with pytest.raises(InvalidProgram) as caught:
        simulate_program(chain_prices(2, 2), parse_program(text))
    assert message in caught.value.message


def test_numbers_beyond_all_arrays() -> None:
    """A micro-batch number that no array can hold is refused."""
    program = Program(instructions_by_device=((Task(0, "F", 10**30),), ()))
    with pytest.raises(InvalidProgram, match="is not a stage or micro-batch number"):
        simulate_program(chain_prices(2, 2), program)


def test_a_missing_replica_in_an_all_reduce() -> None:
    """R must stand on every device of its stage."""
    priced = chain_prices(1, 1, devices=[(0, 1)])
    with pytest.raises(InvalidProgram, match="0R0 is 1 times in the program; its stage has 2"):
        simulate_program(priced, parse_program("0F0 0B0 0R0\n0F0 0B0"))


def test_all_reduces_can_deadlock() -> None:
    """Two replicas that reduce two stages in different orders wait for each other."""
    priced = dag_prices([], 1, num_stages=2, devices=[(0, 1), (0, 1)])
    program = parse_program("0F0 1F0 0B0 1B0 0R0 1R0\n0F0 1F0 0B0 1B0 1R0 0R0")
    with pytest.raises(InvalidProgram, match="device 0 waits at 0R0 for device 1 to reach it too"):
        simulate_program(priced, program)


def test_prices_without_a_message_are_refused() -> None:
    """An edge between different devices needs a transfer that reaches them."""
    priced = msgspec.structs.replace(chain_prices(2, 1), transfers=())
    with pytest.raises(InvalidProgram, match="no message from stage 0 to stage 1 on device 1"):
        simulate_program(priced, parse_program("0F0\n1F0"))


def test_empty_programs() -> None:
    """Devices without work take no time."""
    priced = chain_prices(2, 1)
    timeline = simulate_program(priced, parse_program("\n"))
    assert (timeline.spans, timeline.makespan_s, timeline.critical_path) == ((), 0.0, ())
    assert predict_step(priced, parse_program("\n")).step_s == 0.0


def test_a_small_program_loads_no_compiler() -> None:
    """`graphplan show` would take longer to load numba than to simulate."""
    code = (
        "import sys; from tests.pure.strategies import chain_prices;"
        "from graphplan.nouns.schedule import parse_program;"
        "from graphplan.simulate import simulate_program;"
        "program = parse_program('0F0 0>1F0 1>0B0 0B0\\n0>1F0 1F0 1B0 1>0B0');"
        "simulate_program(chain_prices(2, 1), program); sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_of_the_documentation() -> None:
    """The code in docs/simulator.md runs and its figures hold."""
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    exec(text.split("```python\n")[1].split("```")[0], {})
