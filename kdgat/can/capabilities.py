"""What of a GPU and of RAPIDS is usable in this process, and why the rest is not.

A package that is installed need not work: RAPIDS wants a driver and a device. So a probe tries the thing itself, once
per process; nothing is imported before something asks.

`kdgat doctor` shows them; `python -m kdgat.can.capabilities` prints them as JSON in an image, which has no typer.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Final, NamedTuple

CUDA: Final = "CUDA device"
PYLIBCUGRAPH, CUGRAPH_PYG, CUDF, CUML = "pylibcugraph", "cugraph_pyg", "cudf", "cuml"
NOT_INSTALLED: Final = "not installed"
CUDA_MAJORS: Final = (13, 12)  # a wheel of RAPIDS carries the CUDA version in its name


class Capability(NamedTuple):
    """State whether something can be used."""

    name: str
    usable: bool
    version: str | None
    detail: str  # what it is, or why it cannot be used


def find_capabilities() -> list[Capability]:
    """Try the device, then all of RAPIDS that is installed; nothing is imported for what is not."""
    return [find_cuda(), *(find_package(name) for name in (PYLIBCUGRAPH, CUGRAPH_PYG, CUDF, CUML))]


@cache
def find_cuda() -> Capability:
    """Return whether torch can compute on a CUDA device."""
    import torch

    built_for = torch.version.cuda
    if built_for is None:
        return Capability(CUDA, False, None, f"torch {torch.__version__} is built without CUDA")
    if torch.cuda.is_available():
        name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
        return Capability(CUDA, True, built_for, name if count == 1 else f"{name}, the first of {count}")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return Capability(CUDA, False, built_for, _first_line(error))
    return Capability(CUDA, False, built_for, "the driver shows no device: ask for a GPU, or set CUDA_VISIBLE_DEVICES")


@cache
def find_package(name: str) -> Capability:
    """Return whether a package of RAPIDS can be imported here, and for those with a trial whether it computes."""
    found = Capability(name, False, _version_of(name), NOT_INSTALLED)
    if importlib.util.find_spec(name) is None:
        return found
    device = find_cuda()
    if not device.usable:
        return found._replace(detail=f"installed, but it needs a CUDA device: {device.detail}")
    try:
        module = importlib.import_module(name)
        if name in _TRIALS:
            _TRIALS[name](module)
    except Exception as error:  # a driver that is too old, libraries that do not fit, a full device: many types
        return found._replace(detail=f"installed, but fails: {type(error).__name__}: {_first_line(error)}")
    return found._replace(usable=True, detail="computes" if name in _TRIALS else "can be imported")


def _try_cudf(module: ModuleType) -> None:
    if int(module.Series([1, 2]).sum()) != 3:
        raise ArithmeticError("1 + 2 is not 3 on this device")


def _try_cuml(module: ModuleType) -> None:
    import numpy as np

    scaler = importlib.import_module(f"{module.__name__}.preprocessing").StandardScaler()
    scaler.partial_fit(np.array([[1.0], [3.0]]))
    if float(scaler.mean_[0]) != 2.0:
        raise ArithmeticError("the mean of 1 and 3 is not 2 on this device")


def _try_pylibcugraph(module: ModuleType) -> None:
    """Count the triangles of four vertices that are all connected."""
    import numpy as np

    cupy = importlib.import_module("cupy")  # which RAPIDS brings along
    ends = np.array([(one, other) for one in range(4) for other in range(4) if one != other], np.int32).T
    sources, targets = map(cupy.asarray, ends)
    handle = module.ResourceHandle()
    graph = module.SGGraph(
        handle, module.GraphProperties(is_symmetric=True, is_multigraph=False), sources, targets,
        cupy.ones(len(sources), dtype=np.float32), store_transposed=False, renumber=True, do_expensive_check=False,
    )  # fmt: skip
    _, counts = module.triangle_count(handle, graph, None, False)
    if cupy.asnumpy(counts).tolist() != [3, 3, 3, 3]:
        raise ArithmeticError(f"four connected vertices are not in 3 triangles each on this device, but in {counts}")


_TRIALS: Final[dict[str, Callable[[ModuleType], None]]] = {
    CUDF: _try_cudf,
    CUML: _try_cuml,
    PYLIBCUGRAPH: _try_pylibcugraph,
}


def _version_of(module: str) -> str | None:
    name = module.replace("_", "-")
    for distribution in (name, *(f"{name}-cu{major}" for major in CUDA_MAJORS)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


if __name__ == "__main__":
    print(json.dumps([capability._asdict() for capability in find_capabilities()], indent=2))
