"""Checksums as residuals: what stays the same while one holds, and how to make it hold."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from kdgat.canbus.features.checksums import (
    NUM_CHECKSUMS,
    checksum_residual,
    checksum_residuals,
    residual_of,
    sealed,
)


def _words(payload: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(payload).view("<u8").reshape(-1)


def _payloads(num_bytes: int, num: int = 50) -> NDArray[np.uint8]:
    payload = np.random.default_rng(3).integers(0, 256, (num, 8), dtype=np.uint8)
    payload[:, num_bytes:] = 0
    return payload


def _residuals(kind: int, payload: NDArray[np.uint8], num_bytes: int) -> set[int]:
    return {int(checksum_residual(kind, word, num_bytes)) for word in _words(payload)}


def _crc(payload: bytes, polynomial: int, start: int, final: int) -> int:
    """Compute a CRC-8 bit by bit, as its definition says."""
    value = start
    for byte in payload:
        value ^= byte
        for _ in range(8):
            value = ((value << 1) ^ polynomial) & 255 if value & 128 else value << 1
    return value ^ final


@pytest.mark.parametrize("polynomial", [0x1D, 0x2F, 0x07])
@pytest.mark.parametrize("at_start", [False, True])
def test_a_crc_is_found_whatever_its_start_value_and_final_inversion(polynomial: int, at_start: bool) -> None:
    payload = _payloads(8)
    for row in payload:
        if at_start:
            row[0] = _crc(row[1:].tobytes(), polynomial, 0x5A, 0xFF)
        else:
            row[7] = _crc(row[:7].tobytes(), polynomial, 0x5A, 0xFF)
    constant = [kind for kind in range(NUM_CHECKSUMS) if len(_residuals(kind, payload, 8)) == 1]
    assert len(constant) == 1


def test_the_check_value_of_sae_j1850_is_reproduced() -> None:
    assert _crc(b"123456789", 0x1D, 0xFF, 0xFF) == 0x4B  # from the catalogue of parametrised CRC algorithms
    assert _crc(b"123456789", 0x2F, 0xFF, 0xFF) == 0xDF  # AUTOSAR


@pytest.mark.parametrize("num_bytes", [3, 7, 8])
@pytest.mark.parametrize("kind", range(NUM_CHECKSUMS))
def test_sealed_payloads_hold_and_differ_in_one_byte_alone(kind: int, num_bytes: int) -> None:
    payload = _payloads(num_bytes)
    for place in (0, num_bytes - 1):
        kept = sealed(kind, 9, place, _words(payload), num_bytes).view(np.uint8).reshape(-1, 8)
        assert _residuals(kind, kept, num_bytes) == {9}
        assert (np.delete(kept, place, axis=1) == np.delete(payload, place, axis=1)).all()


@pytest.mark.parametrize("kind", range(NUM_CHECKSUMS))
def test_one_wrong_byte_breaks_every_checksum(kind: int) -> None:
    kept = sealed(kind, 9, 7, _words(_payloads(8)), 8).view(np.uint8).reshape(-1, 8)
    for place in range(8):
        wrong = kept.copy()
        wrong[:, place] ^= 1
        assert 9 not in _residuals(kind, wrong, 8)


@pytest.mark.parametrize("num_bytes", range(1, 9))
def test_residuals_of_all_kinds_at_once_are_those_of_each(num_bytes: int) -> None:
    """Whatever is in the bytes that a short payload does not have."""
    words = np.random.default_rng(num_bytes).integers(0, 1 << 64, 60, dtype=np.uint64)
    for word in words:
        for kind in range(NUM_CHECKSUMS):
            assert _residual(word, num_bytes, kind) == checksum_residual(kind, word, num_bytes), (kind, hex(word))


@njit
def _residual(word: np.uint64, num_bytes: int, kind: int) -> int:
    return residual_of(checksum_residuals(word, num_bytes), kind)
