"""Cores: ranks of a host have shares of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.cores import count_cores, kept_cores, list_cores, share_cores

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not keep processes to cores"
)


@given(st.sets(st.integers(0, 99), min_size=1, max_size=20), st.integers(1, 20))
def test_shares_are_parts_of_all_cores(cores: set[int], num_ranks: int) -> None:
    """Every core belongs to one rank and every rank has one; too few cores are left to all."""
    numbers = sorted(cores)
    shares = [share_cores(rank, num_ranks, numbers) for rank in range(num_ranks)]
    if num_ranks > len(numbers):
        assert all(share == numbers for share in shares)
        return
    assert [core for share in shares for core in share] == numbers
    lengths = [len(share) for share in shares]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A thread that was there before."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    over.set()
    thread.join()


@needs_affinity
def test_all_threads_keep_to_the_share_for_a_while(sleeper: int) -> None:
    """Threads that were there before too; afterwards all cores are theirs again."""
    before = list_cores()
    with kept_cores(0, len(before)):
        assert os.sched_getaffinity(0) == {before[0]} == os.sched_getaffinity(sleeper)
        assert count_cores() == 1
    assert os.sched_getaffinity(0) == set(before) == os.sched_getaffinity(sleeper)
