"""All random states of a process, and the switches that make torch repeat itself."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch (all devices); call it before building a model as well."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_random_state() -> dict[str, Any]:
    """Return every random state as plain values and tensors."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "torch": torch.get_rng_state(),
        # Of the one device that trains.
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every random state back; that of CUDA where there is a device, whatever its number is now."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    np.random.set_state((numpy["kind"], numpy["keys"], numpy["position"], numpy["has_gauss"], numpy["cached"]))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])


@contextmanager
def separate_randomness(seed: int) -> Iterator[None]:
    """Draw from a stream of its own inside the context; the one outside goes on untouched."""
    state = capture_random_state()
    seed_everything(seed)
    try:
        yield
    finally:
        restore_random_state(state)


@contextmanager
def repeatable(num_threads: int, deterministic: bool, *, strict: bool = False) -> Iterator[None]:
    """Fix the number of threads and, if asked, choose deterministic kernels; both are put back afterwards.

    Where there is no deterministic kernel, `strict` makes an error of what is a warning else.
    """
    threads_before = torch.get_num_threads()
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    warn_only_before = torch.is_deterministic_algorithms_warn_only_enabled()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(num_threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is repeatable with this alone
        torch.use_deterministic_algorithms(True, warn_only=not strict)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(deterministic_before, warn_only=warn_only_before)
        torch.utils.deterministic.fill_uninitialized_memory = fill_before  # type: ignore[attr-defined]
