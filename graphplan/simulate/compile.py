"""compile_program: read a program, wherever it comes from, into the arrays that are played.

What can be decided without time is decided here: numbers that do not exist, transfers with one end,
needs that nothing satisfies, two ends of a link that post in different orders. What remains for the
player are the moments, and cycles of waiting. Programs that graphplan itself has lowered need none
of this: schedule/lower.py writes the same arrays directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Task, Transfer
from graphplan.play.cast import Cast, assemble_script, lay_wires
from graphplan.play.script import (
    FORWARD,
    INPUT_GRAD,
    KINDS,
    Floats,
    Ints,
    Tasks,
    point_rows,
)
from graphplan.simulate.compiled import Compiled, Messages, name_message, name_task
from graphplan.simulate.sanity import check_prices

SLACK = 1024
"""How far micro-batch numbers may exceed the number of a stage's tasks."""
MAX_BUCKETS = 1 << 20
CODE_BY_KIND = {kind: code for code, kind in enumerate(KINDS)}
ROW_BY_KIND = {"F": "F", "B": "B", "I": "B", "W": "W"}
"""B or I, whichever there is, hands out the gradient."""

Message = tuple[int, int]
"""A wire and a micro-batch of its sender."""


def compile_program(priced: PricedStages, program: Program) -> Compiled:
    """The program as arrays; raises InvalidProgram when it can never run."""
    check_prices(priced)
    reader = _Reader(priced, program)
    for device, line in enumerate(program.instructions_by_device):
        for each in line:
            if isinstance(each, Task):
                reader.take_task(device, each)
            else:
                reader.take_transfer(device, each)
        reader.first.append(len(reader.tasks))
    return reader.assemble()


class _Reader:
    """What has been read so far, instruction after instruction."""

    def __init__(self, priced: PricedStages, program: Program) -> None:
        self.priced, self.program = priced, program
        self.wires, self.lanes, self.channels = lay_wires(priced)
        self.first = [0]
        self.tasks: list[tuple[int, int, int, int]] = []
        """Device, stage, kind and micro-batch."""
        self.place: dict[tuple[int, int, str, int], int] = {}
        """Tasks by device, stage, row and micro-batch."""
        self.sent: dict[Message, int] = {}
        """Position among the posts at which a message is sent."""
        self.received: dict[Message, int] = {}
        self.posts: list[tuple[int, Message]] = []
        """Slots, -1 - device for the start of a device, and what is posted there."""
        self._check_numbers()
        self.hosts = {(d, s) for s, stage in enumerate(priced.stages) for d in stage.devices}
        self.wires_by_end: dict[tuple[bool, int, int, int], list[int]] = {}
        """By whether it sends, device, sending and receiving stage."""
        self.wires_by_post: dict[tuple[int, int, int, str], tuple[list[int], list[int]]] = {}
        """By device, ends and kind of a transfer: the wires that it sends on, and receives on."""
        columns = (each.tolist() for each in self.wires[:4])
        for wire, (src, dst, sender, receiver) in enumerate(zip(*columns, strict=True)):
            self.wires_by_end.setdefault((True, sender, src, dst), []).append(wire)
            self.wires_by_end.setdefault((False, receiver, src, dst), []).append(wire)
        backward = [(dst, src) for src, dst in priced.backward_edges]
        self.sources: list[dict[str, list[int]]] = [{"F": [], "B": []} for _ in priced.stages]
        for row, edges in (("F", priced.edges), ("B", backward)):
            for src, dst in edges:
                self.sources[dst][row].append(src)

    def _check_numbers(self) -> None:
        """Refuse devices, stages and micro-batches that do not exist."""
        lists, num = self.program.instructions_by_device, len(self.priced.stages)
        if len(lists) != len(self.priced.memory_bytes_by_device):
            raise InvalidProgram(
                f"The program has {len(lists)} devices, the prices have"
                f" {len(self.priced.memory_bytes_by_device)}.",
                remedy="Give the program one line for each device, an empty one if it has no work.",
            )
        tasks = [each for line in lists for each in line if isinstance(each, Task)]
        posts = [each for line in lists for each in line if isinstance(each, Transfer)]
        micro_batches = [each.micro_batch for each in tasks] + [each.micro_batch for each in posts]
        stages = [each.stage for each in tasks]
        named = (*stages, *(each.src for each in posts), *(each.dst for each in posts))
        if max(*named, *micro_batches, 0, 0) >= 1 << 62:
            raise InvalidProgram(
                f"{max(*named, *micro_batches)} is not a stage or micro-batch number.",
                remedy="Write the program with numbers that the plan has.",
            )
        for bad in set(named) - set(range(num)):
            raise InvalidProgram(
                f"The program names stage {bad}; there are {num} stages.",
                remedy="Lower the schedule again for these prices.",
            )
        counts = Counter(stages)
        senders = zip((*stages, *(each.src for each in posts)), micro_batches, strict=True)
        for stage, m in senders:
            if not 0 <= m < counts[stage] + SLACK:
                raise InvalidProgram(
                    f"The program has a micro-batch {m} of stage {stage}, but only {counts[stage]}"
                    " tasks of that stage.",
                    remedy="Number the micro-batches from 0.",
                )

    # -- tasks -------------------------------------------------------------------------------------

    def take_task(self, device: int, task: Task) -> None:
        """A task; what it needs of its own device comes before it."""
        if (device, task.stage) not in self.hosts:
            raise InvalidProgram(
                f"Device {device} runs {task}, but stage {task.stage} is on devices"
                f" {list(self.priced.stages[task.stage].devices)}.",
                remedy="Lower the schedule again for these prices.",
            )
        number = len(self.tasks)
        self.tasks.append((device, task.stage, CODE_BY_KIND[task.kind], task.micro_batch))
        row = ROW_BY_KIND.get(task.kind)
        if row is None:
            return
        if (device, task.stage, row, task.micro_batch) in self.place:
            raise InvalidProgram(
                f"Device {device} runs {task} twice, or both B and I of that micro-batch.",
                remedy="Keep one of them.",
            )
        if row != "F":
            self._require(device, task, "F" if row == "B" else "I", task.stage, task.micro_batch)
        if row != "W":
            for source in self.sources[task.stage][row]:
                if (device, source) in self.hosts:
                    for m in self._cover(task.stage, task.micro_batch, source):
                        self._require(device, task, row, source, m)
        self.place[device, task.stage, row, task.micro_batch] = number

    def _require(self, device: int, task: Task, kind: str, stage: int, micro_batch: int) -> None:
        found = self.place.get((device, stage, ROW_BY_KIND[kind], micro_batch))
        if found is not None and (kind != "I" or self.tasks[found][2] == INPUT_GRAD):
            return
        text = f"{stage}{kind}{micro_batch}"
        kinds = "BI" if kind == "B" else kind
        later = any(
            isinstance(each, Task)
            and (each.stage, each.micro_batch) == (stage, micro_batch)
            and each.kind in kinds
            for each in self.program.instructions_by_device[device]
        )
        how = f"runs {text} only later" if later else f"does not run {text}"
        raise InvalidProgram(
            f"Deadlock: device {device} runs {task}, which needs {text}; the device {how}.",
            remedy=f"Put {text} before {task}.",
        )

    def _cover(self, stage: int, micro_batch: int, source: int) -> Sequence[int]:
        """Micro-batches of a sender that hold samples of a reader's micro-batch."""
        size = self.priced.stages[stage].micro_batch_size
        theirs = self.priced.stages[source].micro_batch_size
        if size == theirs:
            return (micro_batch,)
        return range(micro_batch * size // theirs, -(-(micro_batch + 1) * size // theirs))

    # -- transfers ---------------------------------------------------------------------------------

    def take_transfer(self, device: int, transfer: Transfer) -> None:
        """A transfer; it stands for one end of each of its messages that has an end here."""
        src, dst, kind, m = transfer.src, transfer.dst, transfer.kind, transfer.micro_batch
        key = (device, src, dst, kind)
        if key not in self.wires_by_post:
            self._check_transfer(device, transfer)
            self.wires_by_post[key] = (
                self.wires_by_end.get((True, device, src, dst), []),
                self.wires_by_end.get((False, device, src, dst), []),
            )
        sends, receives = self.wires_by_post[key]
        num = len(self.tasks)
        slot = num - 1 if num > self.first[-1] else -1 - device
        if sends and (device, src, ROW_BY_KIND[kind], m) not in self.place:
            raise InvalidProgram(
                f"Device {device} posts {transfer} before it has run {src}{kind}{m}.",
                remedy=f"Put {transfer} behind {src}{kind}{m}.",
            )
        for known, wires in ((self.sent, sends), (self.received, receives)):
            for wire in wires:
                message = (wire, m)
                if message in known:
                    how = "sends" if known is self.sent else "receives"
                    raise InvalidProgram(
                        f"Device {device} {how} {transfer} twice.", remedy="Keep one of the two."
                    )
                known[message] = len(self.posts)
                self.posts.append((slot, message))

    def _check_transfer(self, device: int, transfer: Transfer) -> None:
        ends = [(device, stage) in self.hosts for stage in (transfer.src, transfer.dst)]
        price = self.priced.transfer_by_ends.get((transfer.src, transfer.dst))
        what = None
        if not any(ends):
            what = "which has neither end there"
        elif price is None and not all(ends):
            what = "which has no price"
        elif price and price.messages and price.backward != (transfer.kind == "B"):
            what = "whose direction has the other kind"
        if what:
            raise InvalidProgram(
                f"Device {device} posts {transfer}, {what}.",
                remedy="Lower the schedule again for these prices.",
            )

    # -- the whole ---------------------------------------------------------------------------------

    def assemble(self) -> Compiled:
        """The arrays, when all transfers have two ends and all needs a message."""
        lonely = self.sent.keys() ^ self.received.keys()
        if lonely:
            self._refuse_lonely(min(lonely))
        keys = sorted(self.sent)
        number = {message: i for i, message in enumerate(keys)}
        num_tasks, num_devices = len(self.tasks), len(self.first) - 1
        columns = np.array(self.tasks, dtype=np.int64).reshape(-1, 4).T.copy()
        tasks = Tasks(np.array(self.first), *columns)
        wire, micro_batch = np.array(keys, dtype=np.int64).reshape(-1, 2).T.copy()
        slots = np.array([slot for slot, _ in self.posts], dtype=np.int64)
        slots = np.where(slots < 0, num_tasks - 1 - slots, slots)
        messages = Messages(
            wire=wire,
            micro_batch=micro_batch,
            consumer=self._find_consumers(tasks, number),
            send_slot=slots[[self.sent[each] for each in keys]],
            receive_slot=slots[[self.received[each] for each in keys]],
        )
        self._check_order(keys)
        self._check_groups(tasks)
        post_message = np.array([number[message] for _, message in self.posts], dtype=np.int64)
        cast = Cast(np.arange(num_devices), self.wires, self.lanes, len(self.channels))
        rows = point_rows(num_tasks + num_devices, slots)
        script = assemble_script(
            self.priced,
            tasks,
            _tabulate_seconds(self.priced, tasks),
            cast,
            wire,
            messages.consumer,
            (rows, post_message[np.argsort(slots, kind="stable")]),
        )
        return Compiled(num_devices, tasks, messages, self.wires, self.channels, script)

    def _refuse_lonely(self, message: Message) -> NoReturn:
        name = name_message(self.wires, *message)
        src, dst = self.wires.src_device[message[0]], self.wires.dst_device[message[0]]
        raise InvalidProgram(
            f"Device {src} sends {name} to device {dst}, which never receives it."
            if message in self.sent
            else f"Device {dst} receives {name} from device {src}, which never sends it.",
            remedy=f"Post {name} on both devices.",
        )

    def _find_consumers(self, tasks: Tasks, number: dict[Message, int]) -> Ints:
        """By message: the first task that reads it; later ones on that device find it there."""
        nobody = len(self.tasks)
        consumer = [nobody] * len(number)
        for task, (device, stage, kind, m) in enumerate(self.tasks):
            if kind > INPUT_GRAD:
                continue  # W, R and U read no messages
            for source in self.sources[stage]["F" if kind == FORWARD else "B"]:
                for wire in self.wires_by_end.get((False, device, source, stage), ()):
                    for theirs in self._cover(stage, m, source):
                        found = number.get((wire, theirs))
                        if found is None:
                            self._refuse_need(tasks, task, wire, theirs)
                        if consumer[found] == nobody:
                            consumer[found] = task
        return np.array(consumer, dtype=np.int64)

    def _refuse_need(self, tasks: Tasks, task: int, wire: int, micro_batch: int) -> NoReturn:
        name, waiting = name_message(self.wires, wire, micro_batch), name_task(tasks, task)
        raise InvalidProgram(
            f"Deadlock: device {tasks.device[task]} runs {waiting}, which needs {name} from"
            f" device {self.wires.src_device[wire]}; the program does not transfer it.",
            remedy=f"Post {name} on both devices, before {waiting} on the receiving one.",
        )

    def _check_order(self, keys: list[Message]) -> None:
        """Between two devices, both ends must post the messages of one direction in one order."""
        src, dst = self.wires.src_device.tolist(), self.wires.dst_device.tolist()
        last: dict[tuple[int, int], Message] = {}
        for message in sorted(keys, key=self.sent.__getitem__):
            ends = src[message[0]], dst[message[0]]
            before = last.get(ends)
            if before is not None and self.received[before] > self.received[message]:
                one, two = (name_message(self.wires, *each) for each in (before, message))
                raise InvalidProgram(
                    f"Deadlock: device {ends[0]} sends {one} before {two}, device {ends[1]}"
                    f" receives {two} before {one}.",
                    remedy="Post the transfers between two devices in the same order on both.",
                )
            last[ends] = message

    def _check_groups(self, tasks: Tasks) -> None:
        """Every replica must take part in each all-reduce."""
        counts = Counter((s, m) for _, s, kind, m in self.tasks if KINDS[kind] == "R")
        for (stage, m), count in counts.items():
            num = len(self.priced.stages[stage].devices)
            if count != num:
                raise InvalidProgram(
                    f"{stage}R{m} is {count} times in the program; its stage has {num} replicas.",
                    remedy="Put an all-reduce once on every device of the stage.",
                )
        laws = [(self.priced.stages[stage].reduction, m) for stage, m in counts]
        num_buckets = sum(len(law.buckets) for law, _ in laws if law is not None)
        if num_buckets > MAX_BUCKETS:
            raise InvalidProgram(
                f"The program reduces {num_buckets:,} buckets; {MAX_BUCKETS:,} can be played.",
                remedy="Use larger buckets, or fewer updates in a batch.",
            )


def _tabulate_seconds(priced: PricedStages, tasks: Tasks) -> Floats:
    """By task."""
    table = [
        (s.forward_s, s.backward_s, s.input_grad_s, s.weight_grad_s, s.reduce_s, s.update_s)
        for s in priced.stages
    ]
    seconds: Floats = np.array(table).reshape(-1, len(KINDS))[tasks.stage, tasks.kind]
    return seconds
