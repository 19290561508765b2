"""Watching code that reads foreign files: what it does, how long, and in how much memory.

`sys.addaudithook` tells of every compilation, import, opened file, process and socket. The hook
cannot be removed; it looks only while a `Watch` is open. Children are forks of a warmed process, so
that nothing needs to be imported or compiled in them; each runs many cases and tells of every one
before it begins, so that a child that dies names its case.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import math
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from graphplan.errors import GraphplanError

HANG_S = 10.0
KILL_S = 20.0
WAIT_S = 60.0
"""Of the wall clock: a case that waits for something takes hardly any processor time meanwhile."""
WORKS_S = 0.05
"""Of processor time: what takes as much within `WAIT_S` does not wait, however busy others are."""
MEMORY_BYTES = 1 << 30
BATCH = 50
"""Cases of one child."""
NUM_CHILDREN = 2
"""At work at the same time."""
TRACED = 40
"""One child of so many tells which lines it has executed."""

_ALWAYS = (
    "compile", "exec", "import", "marshal.loads", "code.__new__", "function.__new__",
    "pickle.find_class", "ctypes.dlopen", "os.system", "os.exec", "os.fork", "os.forkpty",
    "os.posix_spawn", "os.spawn", "os.startfile", "os.putenv", "os.kill", "subprocess.Popen",
    "socket.__new__", "socket.bind", "socket.connect", "socket.sendto", "socket.getaddrinfo",
    "webbrowser.open", "urllib.Request", "sys.addaudithook", "shutil.unpack_archive",
)  # fmt: skip
"""Events that reading a file never needs."""
RUNNING = frozenset((
    "compile", "exec", "import", "marshal.loads", "code.__new__", "function.__new__",
    "pickle.find_class",
))  # fmt: skip
"""Of these, events of code that runs: what torch does with a saved program that was checked."""
_WRITING = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod",
    "os.chown", "os.truncate", "os.mkfifo", "shutil.rmtree", "shutil.move", "shutil.copyfile",
)  # fmt: skip
_MAKING = ("os.symlink", "os.link")
"""Events whose second argument is what is written."""
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


_NO_LINKS = os.O_EXCL | os.O_NOFOLLOW
"""Flags with which a link is not opened."""


class Watch:
    """What happened while it was open; writing is allowed below `output` only."""

    def __init__(self, output: Path | None = None, allowed: frozenset[str] = frozenset()) -> None:
        self.allowed = allowed
        self.output = os.path.realpath(output) + "/" if output is not None else None
        self.found: list[str] = []

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        """Note an event that must not be."""
        if event in self.allowed or (event == "os.kill" and args[1] == 0):  # 0: is it there?
            return
        if event in _ALWAYS:
            self.found.append(f"{event} {str(args[:1])[:120]}")
        elif event in _WRITING and not self._is_inside(_find_place(event, args), follow=False):
            self.found.append(f"{event} {str(args[:2])[:120]}")
        elif (
            event == "open"
            and self._writes(args)
            and not self._is_inside(args[0], follow=not (args[2] or 0) & _NO_LINKS)
        ):
            self.found.append(f"open for writing {str(args[0])[:120]}")

    @staticmethod
    def _writes(args: tuple[Any, ...]) -> bool:
        _, mode, flags = args
        if isinstance(mode, str):
            return any(each in mode for each in "wax+")
        return bool((flags or 0) & _WRITE_FLAGS)

    def _is_inside(self, path: object, *, follow: bool = True) -> bool:
        """Opening goes through a link; removing and renaming are done to the link itself."""
        if path == os.devnull or isinstance(path, int):
            return True
        if self.output is None or not isinstance(path, (str, os.PathLike)):
            return False
        folder, name = os.path.split(os.fspath(path))
        real = os.path.realpath(path) if follow else f"{os.path.realpath(folder)}/{name}"
        return f"{real}/".startswith(self.output)


def _find_place(event: str, args: tuple[Any, ...]) -> object:
    """What is written; `shutil.rmtree` names files from an open folder, the last argument."""
    path = args[event in _MAKING]
    is_below = event in ("os.remove", "os.rmdir") and isinstance(args[-1], int) and args[-1] >= 0
    return f"/proc/self/fd/{args[-1]}/{os.fspath(path)}" if is_below else path


_open_watches: list[Watch] = []
_hooked: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _open_watches:
        _open_watches[-1].see(event, args)


@contextlib.contextmanager
def watch(output: Path | None = None, *, allowed: frozenset[str] = frozenset()) -> Iterator[Watch]:
    """Look at all that the block does; the hook stays, but looks at nothing afterwards."""
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    found = Watch(output, allowed)
    _open_watches.append(found)
    try:
        yield found
    finally:
        _open_watches.remove(found)


class Case(NamedTuple):
    """Something to try; `run` raises, or returns what went wrong."""

    name: str
    kind: str
    run: Callable[[Path], str | None]
    """Gets an empty folder, in which alone it may write."""


class Outcome(NamedTuple):
    """How a case ended: valid, refused, or a finding."""

    case: int
    verdict: str
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether it must not have ended so."""
        return self.verdict not in ("valid", "refused")


class Hang(BaseException):
    """A case took too long; code that outlives any error of an op must not catch it."""


def judge(number: int, case: Case, folder: Path) -> Outcome:
    """Run one case under the hook, the clock and the ruler."""
    folder.mkdir(parents=True, exist_ok=True)
    before, baseline = dict(os.environ), _reset_peak()
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    signal.setitimer(signal.ITIMER_VIRTUAL, KILL_S)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S, WAIT_S)
    try:
        with watch(folder) as seen:
            verdict, detail = _try(case, folder)
    except Exception:  # Told outside of the watch: Python compiles lines to mark them.
        verdict, detail = "traceback", traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    if seen.found:
        return Outcome(number, "acted", "; ".join(sorted(set(seen.found))[:4]))
    if dict(os.environ) != before:
        return Outcome(number, "acted", "the environment changed")
    if _read_peak() - baseline > MEMORY_BYTES:
        return Outcome(number, "memory", f"{(_read_peak() - baseline) / 2**30:.2f} GB")
    return Outcome(number, verdict, detail)


def _try(case: Case, folder: Path) -> tuple[str, str]:
    try:
        wrong = case.run(folder)
    except GraphplanError as error:
        is_clear = bool(error.message.strip() and error.remedy.strip())
        return ("refused", type(error).__name__) if is_clear else ("traceback", "empty message")
    except Hang as error:
        return "hang", str(error)
    return ("valid", "") if wrong is None else (wrong.split(":")[0], wrong)


def _reset_peak() -> int:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _read_peak()


def _read_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Lines:
    """Which lines of some files are executed."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.seen: set[tuple[str, int]] = set()

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """What `sys.settrace` takes."""
        if frame.f_code.co_filename not in self._files:
            return None
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace


def list_lines(path: str) -> dict[str, set[int]]:
    """By function of a file, its lines: those that an import does not execute."""
    found: dict[str, set[int]] = {}
    waiting: list[tuple[CodeType, bool]] = [(compile(Path(path).read_text(), path, "exec"), False)]
    while waiting:
        code, inside = waiting.pop()
        if inside:
            lines = {line for _, _, line in code.co_lines() if line is not None}
            name = code.co_qualname.partition(".<locals>")[0]
            found.setdefault(name, set()).update(lines - {code.co_firstlineno})
        for each in code.co_consts:
            if isinstance(each, CodeType):
                is_class = not each.co_flags & 1 and not inside  # CO_OPTIMIZED: functions only
                waiting.append((each, inside or not is_class))
    return found


def run_cases(
    cases: Sequence[Case],
    folder: Path,
    *,
    files: Sequence[str] = (),
    traced: int = TRACED,
    until_s: float = math.inf,
) -> tuple[list[Outcome], set[tuple[str, int]]]:
    """Outcomes of all cases, tried in forked children, and the lines that every `traced`-th of
    these executed. No child starts after `until_s` of the monotonic clock."""
    gc.collect()
    gc.freeze()  # Children then look only at what they have made themselves.
    outcomes: dict[int, Outcome] = {}
    seen: set[tuple[str, int]] = set()
    starts = range(0, len(cases), BATCH)
    waiting = collections.deque(range(i, min(i + BATCH, len(cases))) for i in starts)
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            if time.monotonic() > until_s:
                waiting.clear()
            while waiting and len(selector.get_map()) < NUM_CHILDREN:
                numbers = waiting.popleft()
                told = files if (numbers.start // BATCH) % traced == 0 else ()
                child, reading = _start_child(cases, numbers, folder, told)
                selector.register(reading, selectors.EVENT_READ, (numbers, child, bytearray()))
            for key, _ in selector.select():
                numbers, child, heard = key.data
                if text := os.read(key.fd, 1 << 16):
                    heard += text
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                _hear_child(child, heard, numbers, outcomes, seen)
                left = [number for number in numbers if number not in outcomes]
                waiting.extend([range(left[0], numbers.stop)] if left else [])
    return [outcomes[number] for number in sorted(outcomes)], seen


def _note_death(number: int, numbers: range, outcomes: dict[int, Outcome]) -> None:
    """The case during which a child died is the first that it has not told of."""
    case = next((each for each in numbers if each not in outcomes), None)
    if case is not None:
        is_slow = number in (signal.SIGVTALRM, signal.SIGPROF)
        outcomes[case] = Outcome(case, "hang" if is_slow else "died", f"signal {number}")


def _start_child(
    cases: Sequence[Case], numbers: range, folder: Path, files: Sequence[str]
) -> tuple[int, int]:
    """A child that tries some cases, and the end of the pipe into which it tells."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                _work(cases, numbers, folder, files, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def _hear_child(
    child: int,
    heard: bytearray,
    numbers: range,
    outcomes: dict[int, Outcome],
    seen: set[tuple[str, int]],
) -> None:
    """What a child has told of its cases, and how it died if it did."""
    for line in map(json.loads, heard.splitlines()):
        if "line" in line:
            seen.add((line["file"], line["line"]))
        else:
            outcomes[line["case"]] = Outcome(line["case"], line["verdict"], line["detail"])
    _, status = os.waitpid(child, 0)
    if status:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1
        _note_death(number, numbers, outcomes)


def _work(
    cases: Sequence[Case], numbers: Iterable[int], folder: Path, files: Sequence[str], pipe: Any
) -> None:
    """Try cases in this process, which is a child."""

    worked_s = time.process_time()

    def end(number: int, _: object) -> None:
        raise Hang(f"over {HANG_S} s")

    def look(number: int, _: object) -> None:
        nonlocal worked_s
        before_s, worked_s = worked_s, time.process_time()
        if worked_s - before_s < WORKS_S:
            raise Hang(f"it waits for {WAIT_S} s")

    signal.signal(signal.SIGPROF, end)
    signal.signal(signal.SIGALRM, look)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 3 * MEMORY_BYTES, resource.RLIM_INFINITY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    lines = Lines(files)
    if files:
        sys.settrace(lines.trace)
    for number in numbers:
        outcome = judge(number, cases[number], folder / str(number))
        pipe.write(json.dumps(outcome._asdict()) + "\n")
        pipe.flush()
    sys.settrace(None)
    for file, line in sorted(lines.seen):
        pipe.write(json.dumps({"file": file, "line": line}) + "\n")
