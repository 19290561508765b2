"""Doors: the ports on which a rank's peers have called are shut behind them.

gloo listens on a port for every group, for as long as the group lives, and believes a caller that
names the right sequence number: 0, 1, 2. On a machine that others use too, a foreign process could
call first and be taken for a rank, or call until this process has no file descriptors left. A group
is connected when it has been made, so nobody has a reason to call afterwards:

    ports before ----+
    make the groups  |   new listening sockets of this process get a filter that drops every packet;
    ports after  ----+   connections whose other end belongs to another user are cut, before
                         anything has been sent over them

A stranger who calls in the moment in between can so make a run fail, with the stranger's user in
the message; he can neither read nor change it. What a process of the same user does cannot be
prevented: it could as well change the memory of this one. Linux only; elsewhere the doors stay as
gloo leaves them. Connections that gloo makes late (TORCH_GLOO_LAZY_INIT) need open doors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from graphplan.errors import RunFailed

SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of the classic packet filter: return 0, keep no byte."""
LOOPBACK = ("127.", "::1", "::ffff:127.")
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def find_loopback() -> str:
    """The name of the interface that reaches this machine only: `lo`, `lo0`."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


@contextlib.contextmanager
def shut_doors() -> Iterator[None]:
    """Shut the ports that are opened inside, and look who came in."""
    before = set(_list_sockets())
    yield
    if os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0", "false", "False"):
        return
    strangers = []
    for inode, handle in _list_sockets().items():
        if inode not in before:
            with socket.socket(fileno=os.dup(handle)) as found:
                if _is_listening(found):
                    _drop_calls(found)
                elif (user := _find_stranger(found)) is not None:
                    strangers.append(user)
                    found.shutdown(socket.SHUT_RDWR)
    if strangers:
        users = ", ".join(map(str, sorted(set(strangers))))
        raise RunFailed(
            f"A process of another user of this machine (user id {users}) called in place of a"
            " rank while the ranks connected.",
            remedy="Nothing was sent to it. Start the run again, and ask that user.",
        )


def _list_sockets() -> dict[int, int]:
    """File descriptors of this process's sockets by inode; none on systems without /proc."""
    found: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(path).partition(":")  # noqa: PTH115
                if kind == "socket":
                    found[int(inode.strip("[]"))] = int(path.name)
    return found


def _is_listening(found: socket.socket) -> bool:
    is_stream = found.type == socket.SOCK_STREAM and found.family in FAMILIES
    return is_stream and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _drop_calls(listener: socket.socket) -> None:
    program = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    word = struct.pack("HP", len(DROP_ALL) // 8, ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, word)


def _find_stranger(connection: socket.socket) -> int | None:
    """The user at the other end of a connection inside this machine, if it is another one."""
    if connection.type != socket.SOCK_STREAM or connection.family not in FAMILIES:
        return None
    try:
        peer = connection.getpeername()
    except OSError:
        return None  # It is not connected.
    if not peer[0].startswith(LOOPBACK):
        return None
    user = _find_user(_format_address(connection.family, peer))
    return user if user not in (None, os.getuid()) else None


def _format_address(family: int, address: tuple[str, int]) -> str:
    """As the kernel's table has it: words of the address in host order, then the port."""
    packed = socket.inet_pton(family, address[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _find_user(local: str) -> int | None:
    """Whose socket has a local address; None when nobody's has."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                words = line.split()
                if words[1] == local and words[9] != "0":  # An inode: somebody has it open.
                    return int(words[7])
    return None
