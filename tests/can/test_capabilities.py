import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kdgat.can import capabilities
from kdgat.can.capabilities import (
    CUDA,
    CUDF,
    CUML,
    PYLIBCUGRAPH,
    Capability,
    find_capabilities,
    find_cuda,
    find_package,
)

REPOSITORY = Path(__file__).parents[2]
DEVICE = Capability(CUDA, True, "13.0", "a device")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """A probe asks once per process; each test asks for itself, and leaves nothing for the next one."""
    before = set(sys.modules)
    asked = (find_cuda, find_package)
    for probe in asked:
        probe.cache_clear()
    yield
    for probe in asked:
        probe.cache_clear()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in (CUDF, CUML, PYLIBCUGRAPH, "cupy"):
            del sys.modules[name]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)


def test_every_capability_says_whether_it_can_be_used_and_what_is_missing() -> None:
    for capability in find_capabilities():
        assert capability.usable in (True, False)
        assert capability.detail


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_nothing_is_usable_and_the_reason_says_why() -> None:
    found = {capability.name: capability for capability in find_capabilities()}
    assert not any(capability.usable for capability in found.values())
    assert "CUDA" in found[CUDA].detail or "device" in found[CUDA].detail or "driver" in found[CUDA].detail


def test_an_installed_package_is_not_usable_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, CUDF, "raise AssertionError('imported')")
    missing = Capability(CUDA, False, None, "no driver here")
    monkeypatch.setattr(capabilities, "find_cuda", lambda: missing)
    assert find_package(CUDF) == Capability(CUDF, False, None, "installed, but it needs a CUDA device: no driver here")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('libcudart.so.13 cannot be opened')", "RuntimeError: libcudart.so.13 cannot be opened"),
        ("class Series(list):\n    sum = lambda self: 4", "ArithmeticError: 1 + 2 is not 3"),
        ("", "AttributeError"),
    ],
)
def test_a_package_that_fails_on_the_device_is_not_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    install(tmp_path, monkeypatch, CUDF, code)
    monkeypatch.setattr(capabilities, "find_cuda", lambda: DEVICE)
    found = find_package(CUDF)
    assert found.usable is False
    assert reason in found.detail


def test_a_package_that_computes_is_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, CUDF, "from pandas import *")
    monkeypatch.setattr(capabilities, "find_cuda", lambda: DEVICE)
    assert find_package(CUDF) == Capability(CUDF, True, None, "computes")


def test_the_library_with_the_interface_of_cuml_passes_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CUML).mkdir()
    (tmp_path / CUML / "__init__.py").write_text("")
    (tmp_path / CUML / "preprocessing.py").write_text("from sklearn.preprocessing import StandardScaler")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(capabilities, "find_cuda", lambda: DEVICE)
    assert find_package(CUML) == Capability(CUML, True, None, "computes")


@pytest.mark.parametrize(("counts", "detail"), [("3, 3, 3, 3", "computes"), ("3, 3, 3, 0", "installed, but fails")])
def test_the_library_of_graphs_has_to_count_the_triangles_of_four_connected_vertices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: str, detail: str
) -> None:
    """Names and arguments are those of the sources of pylibcugraph 26.10."""
    code = f"""
ResourceHandle = object
def GraphProperties(is_symmetric, is_multigraph): return is_symmetric and not is_multigraph
def SGGraph(handle, graph_properties, src, dst, weight_array, store_transposed, renumber, do_expensive_check):
    assert graph_properties and len(src) == len(dst) == len(weight_array) == 12
def triangle_count(resource_handle, graph, start_list, do_expensive_check): return [0, 1, 2, 3], [{counts}]
"""
    install(tmp_path, monkeypatch, PYLIBCUGRAPH, code)
    install(tmp_path, monkeypatch, "cupy", "from numpy import *\nasnumpy = array")
    monkeypatch.setattr(capabilities, "find_cuda", lambda: DEVICE)
    found = find_package(PYLIBCUGRAPH)
    assert found.usable == (detail == "computes")
    assert found.detail.startswith(detail)


@pytest.mark.processes
def test_asking_imports_no_package_that_is_not_installed_and_starts_no_library_of_readers() -> None:
    program = (
        "import sys, kdgat.can.capabilities as c; c.find_capabilities()\n"
        "print([name for name in ('torch_geometric', 'polars', 'pandas', 'sklearn', 'cudf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_where_there_is_no_command_line_the_module_prints_them() -> None:
    program = [sys.executable, "-m", "kdgat.can.capabilities"]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert [row["name"] for row in json.loads(done.stdout)] == [found.name for found in find_capabilities()]
