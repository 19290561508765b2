"""Lock: one run at a time saves into a folder.

    folder/lock     who holds it: host, process, when that process started

The file is made whole beside its place and linked into it, which only one process can do, also on
network file systems. A lock whose process is gone is taken over: whoever does so first locks the
file itself for the moment (the system forgets that with the process), looks again whether it still
is the file in its place, and only then takes it away. So two runs that find the same stale lock
never both get it.

Gone is a process of this machine (same boot, same process numbers) that does not exist, is a
zombie, or started at another time than the holder did: its number has been given away again. Of
another machine nothing is known but when it last saved; such a lock must be deleted by hand.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from graphplan.errors import InvalidFile, InvalidOption
from graphplan.files import UNREADABLE

LOCK = "lock"
MAX_LOCK_BYTES = 4096
_TRIES = 50
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What file systems say that have no hard links."""
_HELD: set[Lock] = set()


class Holder(msgspec.Struct, frozen=True):
    """A process, told from all others that ever were."""

    host: str
    machine: str
    """The boot of the host and the space of its process numbers; containers have their own."""
    pid: int
    started: str
    """In ticks since the boot; empty where the system does not tell."""

    @property
    def is_gone(self) -> bool:
        """Whether it has provably ended."""
        if not self.machine or self.machine != _describe_machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        started = _read_start(self.pid)
        return started is not None and started != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lock:
    """The lock of one folder, for as long as this process saves there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.own = Holder(
            socket.gethostname(), _describe_machine(), os.getpid(), _read_start(os.getpid()) or ""
        )
        self._gone: Holder | None = None
        """Whose lock has been taken away."""

    def take(self, warn: Callable[[str], None]) -> None:
        """Take it, or say who holds it."""
        beside = self.path.with_name(f".{LOCK}.{os.getpid()}.{id(self)}")
        try:
            beside.write_bytes(msgspec.json.encode(self.own))
            for _ in range(_TRIES):
                if self._place(beside) or self._clear():
                    break
            else:
                raise self._refuse(None, 0.0)
        except OSError as error:
            raise InvalidFile(
                f"Cannot write {self.path}: {error.strerror or error}.",
                remedy="Choose a folder that is writable with --save.",
            ) from error
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
        _HELD.add(self)
        self._sweep()
        if self._gone is not None:
            warn(f"The lock of {self._gone}, which is gone, was taken over: {self.path}.")

    def _sweep(self) -> None:
        """Take away what processes left that were killed before they had the lock."""
        for path in self.path.parent.glob(f".{LOCK}.*"):
            with contextlib.suppress(OSError):
                holder = decode_holder(path.read_bytes())
                if holder is not None and holder.is_gone:  # None: it is being written.
                    path.unlink()

    def _place(self, beside: Path) -> bool:
        """Put our lock where there is none."""
        try:
            self.path.hardlink_to(beside)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with contextlib.suppress(FileExistsError), self.path.open("xb") as file:
                file.write(beside.read_bytes())
                return True
            return False
        return True

    def _clear(self) -> bool:
        """Take the lock of a process away that is gone; whether the lock is ours already."""
        try:
            # A pipe would wait, and a link may lead to anybody's file.
            handle = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError:
            raise self._refuse(None, 0.0) from None
        with os.fdopen(handle, "r+b") as file:
            holder, age_s = decode_holder(file.read(MAX_LOCK_BYTES)), _find_age(handle)
            if holder == self.own:
                return True
            if holder is None or not holder.is_gone:
                raise self._refuse(holder, age_s)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)  # Somebody else is about to take it over.
                return False
            except OSError:  # This file system has no locks of its own: nobody may take over.
                raise self._refuse(holder, age_s) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self.path.stat(), os.fstat(handle)):
                    self.path.unlink()
                    self._gone = holder
        return False

    def _refuse(self, holder: Holder | None, age_s: float) -> InvalidOption:
        who = f"{holder}, which last saved {age_s:.0f} s ago" if holder else "another run"
        return InvalidOption(
            f"{self.path.parent} is in use: {who} saves there.",
            remedy=f"Choose another folder with --save; if that run is gone: rm {self.path}",
        )

    def refresh(self) -> None:
        """Let others see that the run is alive."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def release(self) -> None:
        """Let others save here."""
        _HELD.discard(self)
        with contextlib.suppress(OSError):
            if decode_holder(self.path.read_bytes()) == self.own:
                self.path.unlink()


@atexit.register
def release_locks() -> None:
    """Release all locks of this process, which is about to end."""
    for lock in list(_HELD):
        if lock.own.pid == os.getpid():  # Not in a process that was forked.
            lock.release()


def decode_holder(text: bytes) -> Holder | None:
    """Who has left a lock; None when it cannot be told."""
    try:
        return msgspec.json.decode(text, type=Holder)
    except UNREADABLE:
        return None


def _find_age(handle: int) -> float:
    return max(0.0, time.time() - os.fstat(handle).st_mtime)


def _describe_machine() -> str:
    """Empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _read_start(pid: int) -> str | None:
    """When a process started; `ended` for a zombie, None when nobody tells."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if words[0] in "ZX" else words[19]
    except (OSError, IndexError):
        return None
