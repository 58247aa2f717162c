"""Recordings that are partly the same: a drive cut in two, or one with attacks added, shares blocks of messages.

A block is 256 consecutive messages, identifiers and payloads, whatever their times and labels. Of all blocks of a
recording, at every offset, some are kept by their hash alone: two recordings keep the same ones wherever they are, so
neither a cut nor an added message hides what is shared elsewhere.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import Messages

BLOCK: Final = 256  # messages; by chance no two recordings share that many in a row
KEPT: Final = np.uint64(32)  # one of so many blocks is kept
MOST_SHARED: Final = 0.05  # of the blocks of the shorter recording; more is a near-copy
FEWEST_SHARED: Final = 2
SKETCH: Final = 2048  # blocks that a summary keeps

Blocks = NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse among 64-bit numbers
_INVERSE: Final = np.uint64(pow(int(_MULTIPLIER), -1, 1 << 64))


def kept_blocks(messages: Messages) -> Blocks:
    """Return the hashes of the blocks that a recording is known by, sorted, each once."""
    if len(messages) < BLOCK:
        return np.zeros(0, np.uint64)
    payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
    frame = messages.identifier.astype(np.uint64) << np.uint64(8) | messages.length.astype(np.uint64)
    hashed = _mixed(_mixed(frame) ^ payload)
    # A polynomial over each block, from one running sum: its powers are taken back where the block begins.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashed * _powers(_MULTIPLIER, len(hashed)))])
    inverses = _powers(_INVERSE, len(hashed) - BLOCK + 1)
    blocks = _mixed((sums[BLOCK:] - sums[:-BLOCK]) * inverses)
    return np.unique(blocks[blocks % KEPT == 0])


def shared_blocks(first: Blocks, second: Blocks) -> float:
    """Return which share of the blocks of the one with fewer both have; 0 for fewer than two shared ones."""
    num_shared = np.intersect1d(first, second, assume_unique=True).size
    return num_shared / min(first.size, second.size) if num_shared >= FEWEST_SHARED else 0.0


def sketch(blocks: Blocks) -> list[str]:
    """Return the smallest hashes of a recording as text, few enough to be kept in a summary of any length."""
    return [f"{value:016x}" for value in blocks[:SKETCH].tolist()]


def holds_much_of(blocks: Blocks, known: Sequence[str]) -> bool:
    """Return whether many of the blocks of a recording whose sketch is `known` are among these."""
    values = np.array([int(text, 16) for text in known], np.uint64)
    num_shared = np.intersect1d(blocks, values, assume_unique=True).size
    # A sketch holds the smallest hashes alone: of a short cut, as few as of the long recording that it is of.
    num_told = int(np.count_nonzero(blocks <= values.max(initial=0)))
    return bool(num_shared >= FEWEST_SHARED and num_shared > MOST_SHARED * min(values.size, num_told))


def _powers(base: np.uint64, count: int) -> Blocks:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


def _mixed(values: Blocks) -> Blocks:
    """Spread every bit over the whole number (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
