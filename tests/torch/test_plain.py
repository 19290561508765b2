"""Plain tensors: what a message or a file carries is what the tensor says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphplan_runtime.checkpoints.tensorfile import read_tensors, write_tensors
from graphplan_runtime.messages.plain import make_plain

COMPLEX = torch.tensor([1 + 2j, 3 - 4j])
TENSORS = {
    "conjugated": COMPLEX.conj(),
    "negated": COMPLEX.conj().imag,
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_values_lie_in_memory_as_they_are(name: str) -> None:
    """Neither a mark nor strides are left."""
    tensor = TENSORS[name]
    plain = make_plain(tensor)
    assert torch.equal(plain, tensor)
    assert plain.is_contiguous()
    assert not plain.is_conj()
    assert not plain.is_neg()


def test_plain_tensors_are_not_copied() -> None:
    """Sends keep them for as long as they are under way."""
    assert make_plain(COMPLEX) is COMPLEX


def test_files_hold_the_values(tmp_path: Path) -> None:
    """A mark would be lost in a checkpoint."""
    write_tensors(tmp_path / "x", TENSORS)
    found = read_tensors(tmp_path / "x", list(TENSORS))
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
