"""How much of the device a kernel can use while another one holds some of its multiprocessors.

A kernel of communication stays on a few multiprocessors from its start to its end (24 of 132 for NCCL on an H200), and
what runs beside it has the others. A kernel whose blocks filled all multiprocessors once then needs a second round, and
takes up to twice its time; one of many rounds takes longer by the share that is gone.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT

#: A grid of more blocks than this runs in many rounds, whatever their number.
_MOST_COUNTED = 512
#: More rounds than this are as good as a continuous flow of blocks.
MANY_BLOCKS = _MOST_COUNTED + 1


def count_blocks(grid: Int64) -> Int64:
    """The blocks of each kernel from the checksum of its grid; MANY_BLOCKS for a large one, ABSENT without a grid."""
    sizes, inverse = np.unique(grid, return_inverse=True)
    known = _blocks_by_checksum()
    blocks = [ABSENT if size == ABSENT else known.get(size, MANY_BLOCKS) for size in sizes.tolist()]
    return np.asarray(blocks, np.int64)[inverse.reshape(-1)]


@cache
def _blocks_by_checksum() -> dict[int, int]:
    """The number of blocks of every small grid, by the checksum of its text."""
    known = {}
    for x in range(1, _MOST_COUNTED + 1):
        for y in range(1, _MOST_COUNTED // x + 1):
            for z in range(1, _MOST_COUNTED // (x * y) + 1):
                known[crc32(f"[{x},{y},{z}]".encode())] = x * y * z
    return known


def slowdown_beside(blocks: Int64, is_product: Bool, held: int, processors: int) -> Float64:
    """How much longer each kernel takes while another one holds some multiprocessors; 0.2 is a fifth.

    Args:
        blocks: For each kernel its blocks, as ``count_blocks`` gives them.
        is_product: Which of them multiply matrices: one block of these fills a multiprocessor.
        held: The multiprocessors that are not free.
        processors: All multiprocessors of the device.
    """
    free = max(processors - held, 1)
    flow = processors / free - 1
    rounds: npt.NDArray[np.float64] = np.ceil(blocks / free) / np.ceil(np.maximum(blocks, 1) / processors) - 1
    is_counted = is_product & (blocks != ABSENT) & (blocks < MANY_BLOCKS)
    fits = ~is_product & (blocks != ABSENT) & (blocks <= free)
    return np.where(is_counted, rounds, np.where(fits, 0.0, flow))
