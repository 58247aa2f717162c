"""What the stages of the family share: finding inputs, mapping stores, showing progress."""

import math
import time
from collections.abc import Callable
from pathlib import Path

from kdgat.can.pool import PooledStores
from kdgat.graphs.store import GraphStore
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import StageInputError
from kdgat.stage.spec import StageSpec
from kdgat.training.progress import WRITE_INTERVAL_S

VALIDATION, INJECTED_VALIDATION = "validation", "injected_validation"


def input_path(spec: StageSpec, directory: RunDirectory, name: str) -> Path:
    """Return the file of an input; StageInputError if the spec does not name it."""
    if name not in spec.inputs:
        known = ", ".join(sorted(spec.inputs)) or "none"
        raise StageInputError(f"stage {spec.stage!r} needs an input {name!r} (the spec has: {known}): plan it again")
    return spec.inputs[name].resolve(directory.path)


def open_pool(spec: StageSpec, directory: RunDirectory, required: str, optional: str) -> PooledStores:
    """Map a store of recorded windows and, where there is one with windows in it, its injected companion."""
    paths = {required: input_path(spec, directory, required)}
    if optional in spec.inputs:
        path = input_path(spec, directory, optional)
        if GraphStore.open(path).num_graphs:
            paths[optional] = path
    return PooledStores.open(paths)


def phase_progress(directory: RunDirectory, phase: str) -> Callable[[int, int], None]:
    """Return a callback that writes the progress of something that is no training."""

    last_written = -math.inf

    def report(done: int, total: int) -> None:
        nonlocal last_written
        now = time.monotonic()
        if done == total or now - last_written >= WRITE_INTERVAL_S:
            last_written = now
            directory.write_progress({"phase": phase, "done": done, "total": total})

    return report
