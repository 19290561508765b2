"""Plain tensors: the values lie in memory as they are, one after another.

torch puts off conjugation and negation and keeps a mark in their place, which neither a message nor
a file carries.
"""

from __future__ import annotations

import torch


def make_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, copied only where they are not plain."""
    return tensor.resolve_conj().resolve_neg().contiguous()
