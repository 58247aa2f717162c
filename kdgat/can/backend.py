"""Where preprocessing computes: on the CPU, or on a GPU by the libraries of RAPIDS that have the same interface.

Which it is changes no result, so it is no part of a stage's identity: recordings come out the same bit for bit
(`kdgat.can.readers.dataframe`), and the input scaling the same in the precision that a model keeps
(`kdgat.can.models.standardise`). It is set once per process, like torch's number of threads; outside of a stage
everything is computed on the CPU.
"""

import importlib
import logging
from functools import cache
from types import ModuleType
from typing import Any, Final, Literal

from kdgat.training.capabilities import CUDF, CUML, find_package

logger = logging.getLogger(__name__)

Backend = Literal["auto", "cpu", "cuda"]
KEY: Final = "backend"  # of what a spec says beside its identity
_chosen: Backend = "cpu"


class BackendError(ValueError):
    """The GPU was asked for and cannot be used; the text says why and what to do."""


def use_backend(backend: Backend) -> None:
    """Choose for this process: `cuda` insists on the GPU, `auto` takes it where it works."""
    global _chosen
    _chosen = backend


def dataframes() -> ModuleType | None:
    """Return cudf if recordings are to be read by it, None for the CPU.

    Raises:
        BackendError: if the configuration insists on it and it cannot be used.
    """
    return _module(CUDF, "recordings are read")


def new_scaler() -> Any | None:
    """Return a StandardScaler of cuml if input scaling is to be fitted by it, None for the CPU.

    Raises:
        BackendError: if the configuration insists on it and it cannot be used.
    """
    if _module(CUML, "input scaling is fitted") is None:
        return None
    return importlib.import_module(f"{CUML}.preprocessing").StandardScaler()


def give_up(name: str, what: str, error: Exception) -> None:
    """Go on without the GPU after a library failed on `what`: `auto` warns, `cuda` raises BackendError."""
    reason = f"{what}: {name} failed with {type(error).__name__}: {error}"
    if _chosen == "cuda":
        raise BackendError(f"data.backend=cuda: {reason}; set data.backend=cpu") from error
    logger.warning("%s; from here on the CPU does it", reason)
    use_backend("cpu")


def _module(name: str, what: str) -> ModuleType | None:
    if _chosen == "cpu":
        return None
    found = find_package(name)
    if found.usable:
        _tell(f"{what} on the GPU, by {name} {found.version or ''}")
        return importlib.import_module(name)
    if _chosen == "cuda":
        raise BackendError(
            f"data.backend=cuda: {name} cannot be used here ({found.detail}); set data.backend=auto or cpu, or run "
            "where `kdgat capabilities` finds it"
        )
    _tell(f"{what} on the CPU; {name}: {found.detail}")
    return None


@cache
def _tell(text: str) -> None:
    logger.info(text)
