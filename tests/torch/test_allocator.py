"""Freed memory stays with the process, where the C library is glibc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys, torch
from graphplan.cost.allocator import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(20):  # Until there are holes of the right size.
    torch.empty(1 << 26, dtype=torch.uint8).fill_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.empty(1 << 26, dtype=torch.uint8).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_large_blocks_are_not_fetched_again() -> None:
    """Twenty blocks of 64 MB: with every block all its pages, or hardly any.

    Pages may be as large as 2 MB, of which twenty blocks have 640.
    """
    faults = {
        way: int(subprocess.check_output([sys.executable, "-c", COUNT_FAULTS, way]))
        for way in ("keep", "give back")
    }
    assert faults["keep"] < 100
    assert faults["give back"] > 500
