"""Allocator: freed memory stays with the process that will need it again.

The C library gives every large block back to the system when it is freed. A training step frees and
fetches the same blocks again and again, and each time the system clears them page by page, for
several processes of one host one after another. Training wide layers on two ranks took more than
twice as long that way; profiles are measured under the same rule. On an accelerator torch has an
allocator of its own.
"""

from __future__ import annotations

import ctypes
import functools

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""The names and numbers of glibc's malloc.h."""
GROWTH_BYTES = 64 << 20
"""By how much the heap grows at least."""


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed; False where it is not glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  Others have a mallopt that means other things.
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    wishes = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, GROWTH_BYTES))
    return all(mallopt(name, value) == 1 for name, value in wishes)
