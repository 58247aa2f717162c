"""Random numbers that are the same bits on every machine.

numpy guarantees the stream of a bit generator for ever, but not what its distributions make of it, and the tails of its
normal numbers come from the C library's logarithm, which differs between systems. An instance that is stored as a
seed alone must be drawn again exactly, so that everything here is made of `Generator.random` (the top 53 bits of each
word of PCG64) by operations that IEEE 754 rounds exactly.
"""

import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WORDS_PER_DRAW: Final = 3  # of 16 bits, out of the 53 random bits of a double
_DRAWS_PER_NORMAL: Final = 4
_WORDS: Final = _WORDS_PER_DRAW * _DRAWS_PER_NORMAL
_BLOCK: Final = 1 << 14  # normal numbers made at once: their words stay in the cache
_EVEN_WORDS: Final = np.uint64(0x0000_FFFF_0000_FFFF)
_LOW_WORD: Final = np.uint64(0xFFFF)
_LOW_LANE: Final = np.uint64(0xFFFF_FFFF)


class Draws:
    """A stream of random numbers that depends on the name and the whole numbers it is made from alone."""

    def __init__(self, name: str, *entropy: int) -> None:
        """Start the stream; `entropy` holds whole numbers of at least 0."""
        sequence = np.random.SeedSequence([zlib.crc32(name.encode()), *entropy])
        self._generator = np.random.Generator(np.random.PCG64(sequence))

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Draw from [0, 1), multiples of 2**-53."""
        return self._generator.random(shape)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Draw nearly normal numbers: sums of twelve uniform ones, mean 0, variance 1, within 6, multiples of 2**-16.

        The excess kurtosis is -0.1 (Irwin-Hall distribution).
        """
        values = np.empty(int(np.prod(shape, dtype=np.int64)))
        for start in range(0, len(values), _BLOCK):
            count = min(_BLOCK, len(values) - start)
            words = (self._generator.random((_DRAWS_PER_NORMAL, count)) * 2.0**48).astype(np.uint64)
            # Two sums of 16-bit words side by side in 64 bits; neither reaches 2**32.
            sums = (words & _EVEN_WORDS).sum(axis=0)
            middle = ((words >> np.uint64(16)) & _LOW_WORD).sum(axis=0)
            total = (sums & _LOW_LANE) + (sums >> np.uint64(32)) + middle
            values[start : start + count] = total
        values -= _WORDS * (2.0**16 - 1.0) / 2.0
        values *= 2.0**-16
        return values.reshape(shape)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Draw an order of 0..n-1."""
        return np.argsort(self._generator.random(n), kind="stable")


def derived_seed(seed: int, index: int) -> int:
    """Return the seed of the `index`-th instance of a collection, below 2**63.

    Collections with different seeds share no instance, and a longer collection begins with the shorter one.
    """
    state = np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)
    return int(state[0]) >> 1
