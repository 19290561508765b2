"""Buffers: memory for messages that arrive on a CPU, used again as soon as nobody reads it.

The C library gives large blocks back to the system and fetches them again page by page, which takes
about as long as the message. An accelerator needs no such pool: torch's allocator keeps its memory,
and knows its queues.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

LEAST_BYTES = 1 << 16
"""Smaller blocks the C library keeps by itself."""
_count_users = torch._C._storage_Use_Count


class Buffers:
    """Blocks by size; a block whose only user is this pool is free.

    Who reads a message, and until when, is not asked: an output may be a view of an input, autograd
    may save either. All of them count as users of the block.
    """

    def __init__(self) -> None:
        self._blocks_by_size: dict[int, deque[torch.UntypedStorage]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all blocks."""
        return sum(size * len(blocks) for size, blocks in self._blocks_by_size.items())

    def take(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any contents, on a free block if there is one."""
        size = math.prod(sizes) * dtype.itemsize
        if size < LEAST_BYTES:
            return torch.empty(sizes, dtype=dtype)
        blocks = self._blocks_by_size.get(size)
        if blocks is None:
            blocks = self._blocks_by_size[size] = deque()
        for _ in range(len(blocks)):
            block = blocks[0]
            blocks.rotate(-1)  # What was taken first is free first.
            if _count_users(block._cdata) == 1:
                return _view(block, sizes, dtype)
        made = torch.empty(sizes, dtype=dtype)
        blocks.append(made.untyped_storage())
        return made

    def drop_free(self) -> None:
        """Give back what nobody uses, for instance when batches change their shape."""
        for size, blocks in list(self._blocks_by_size.items()):
            used = [block for block in blocks if _count_users(block._cdata) > 1]
            self._blocks_by_size[size] = deque(used)


def _view(block: torch.UntypedStorage, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(block, 0, tuple(sizes))  # type: ignore[call-overload]
    return tensor
