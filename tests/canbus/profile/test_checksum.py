"""The checksum of an identifier's payloads: found if all carry it, and no longer known once one does not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus.features.checksums import NUM_CHECKSUMS, sealed
from kdgat.canbus.profile.checksum import find_checksum


def _noise(num: int = 400) -> NDArray[np.uint64]:
    return np.random.default_rng(2).integers(0, 1 << 63, num, dtype=np.uint64)


@pytest.mark.parametrize("kind", range(NUM_CHECKSUMS))
def test_every_kind_is_found_and_lost_with_the_first_payload_that_breaks_it(kind: int) -> None:
    is_at_start = kind in (3, 6, 8, 10)
    words = sealed(kind, 5, 0 if is_at_start else 7, _noise(), 8)
    found = find_checksum([words[:200], words[200:]], 8)
    assert found is not None
    assert (found.kind, found.residual, found.num_bytes) == (kind, 5, 8)
    assert found.holds([words])
    words[17] ^= np.uint64(1 << 20)
    assert not found.holds([words])
    assert find_checksum([words], 8) is None


def test_payloads_that_carry_none_or_are_too_few_show_none() -> None:
    assert find_checksum([_noise()], 8) is None
    assert find_checksum([sealed(0, 5, 7, _noise(50), 8)], 8) is None
    assert find_checksum([np.tile(sealed(0, 5, 7, _noise(50), 8), 20)], 8) is None
