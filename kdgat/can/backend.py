"""Where preprocessing computes: on the CPU, or on a GPU by the libraries of RAPIDS that have the same interface.

Which it is changes no result, so it is no part of a stage's identity: recordings come out the same bit for bit
(`kdgat.canbus.readers.parquet`), and the input scaling the same in the precision that a model keeps
(`kdgat.can.models.standardise`). It is set once per process, like torch's number of threads; outside of a stage
everything is computed on the CPU.
"""

import importlib
import logging
from functools import cache
from types import ModuleType
from typing import Any, Final, Literal

from kdgat.base import UserError
from kdgat.can.capabilities import CUDF, CUML, find_package

logger = logging.getLogger(__name__)

Backend = Literal["auto", "cpu", "cuda"]
KEY: Final = "backend"  # of what a spec says beside its identity
ACCELERATOR_KEY: Final = "accelerator"  # likewise: of the stages that only score, which have no section `training`
# From where on `auto` takes a GPU: about what one core does in the seconds that it takes to import the library.
WORTHWHILE_BYTES: Final = 128 << 20  # of a Parquet file: some 12 million messages
WORTHWHILE_VALUES: Final = 1 << 30  # of features
_chosen: Backend = "cpu"


def use_backend(backend: Backend) -> None:
    """Choose for this process: `cuda` insists on the GPU, `auto` takes it where it works and there is much to do."""
    global _chosen
    _chosen = backend


def dataframes(num_bytes: int) -> ModuleType | None:
    """Return cudf if a recording of so many bytes is to be read by it, None for the CPU.

    Raises:
        UserError: if the configuration insists on it and it cannot be used.
    """
    return _module(CUDF, "recordings are read", num_bytes >= WORTHWHILE_BYTES)


def new_scaler(num_values: int) -> Any | None:
    """Return a StandardScaler of cuml if the scaling of so many values is to be fitted by it, None for the CPU.

    Raises:
        UserError: if the configuration insists on it and it cannot be used.
    """
    if _module(CUML, "input scaling is fitted", num_values >= WORTHWHILE_VALUES) is None:
        return None
    return importlib.import_module(f"{CUML}.preprocessing").StandardScaler()


def give_up(name: str, what: str, error: Exception) -> None:
    """Go on without the GPU after a library failed on `what`: `auto` warns, `cuda` raises UserError."""
    reason = f"{what}: {name} failed with {type(error).__name__}: {error}"
    if _chosen == "cuda":
        raise UserError(f"data.backend=cuda: {reason}; set data.backend=cpu") from error
    logger.warning("%s; from here on the CPU does it", reason)
    use_backend("cpu")


def _module(name: str, what: str, is_worthwhile: bool) -> ModuleType | None:
    if _chosen == "cpu":
        return None
    if _chosen == "auto" and not is_worthwhile:
        _tell(f"{what} on the CPU: too little for a GPU")
        return None
    found = find_package(name)
    if found.usable:
        _tell(f"{what} on the GPU, by {name} {found.version or ''}")
        return importlib.import_module(name)
    if _chosen == "cuda":
        raise UserError(
            f"data.backend=cuda: {name} cannot be used here ({found.detail}); set data.backend=auto or cpu, or run "
            "where `kdgat doctor` finds it"
        )
    _tell(f"{what} on the CPU; {name}: {found.detail}")
    return None


@cache
def _tell(text: str) -> None:
    logger.info(text)
