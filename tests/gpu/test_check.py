"""The check of a GPU, tried on the processor: each part by itself, and what becomes of one that fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kdgat.can.capabilities import CUDA, NOT_INSTALLED, Capability
from kdgat.gpu import check, networks, numbers, rapids, repeats, speed, step, survival
from kdgat.gpu.__main__ import main
from kdgat.gpu.check import Part, Rows, check_gpu, table


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.json")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the smallest network of each family."""
    kept = {
        "GAT": networks.Network(networks.detector, lambda: networks.random_windows(16), (4,)),
        "LAP": networks.Network(networks.warm_start, lambda: networks.solved_instance(16), (1,)),
    }
    for module in (networks, numbers, repeats, speed, step):
        monkeypatch.setattr(module, "NETWORKS", kept)
    step._network.cache_clear()


def fail(device: str, rows: Rows) -> None:
    rows.add(what="before", found=1)
    raise ValueError("an operator is missing")


def wait_for_ever(device: str, rows: Rows) -> None:
    raise SystemExit(subprocess.run(["sleep", "60"], check=False).returncode)


def succeed(device: str, rows: Rows) -> None:
    rows.add(what=device, found=True)


@pytest.mark.processes
def test_a_part_that_fails_or_never_ends_is_noted_with_what_it_found_and_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        "fails": Part("Fails", f"{__name__}:fail", 300),
        "waits": Part("Waits", f"{__name__}:wait_for_ever", 3),
        "works": Part("Works", f"{__name__}:succeed", 300, "A note."),
    }
    monkeypatch.setattr(check, "PARTS", parts)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    printed: list[str] = []
    check_gpu(tmp_path, "cpu", tuple(parts), say=printed.append)
    found = json.loads((tmp_path / check.RESULT).read_text())["parts"]
    assert found["fails"]["error"] == "ValueError: an operator is missing"
    assert found["waits"]["error"] == "did not end within 3 s"
    assert [found[name]["rows"] for name in ("fails", "works")] == [
        [{"what": "before", "found": 1}],
        [{"what": "cpu", "found": True}],
    ]
    assert found["works"]["error"] == ""
    page = (tmp_path / check.PAGE).read_text()
    for text in ("| cpu | yes |", "A note.", "an operator is missing"):
        assert text in page


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_check_ends_with_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kdgat.gpu", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ": no GPU to check (training.accelerator=cuda and torch" in done.stdout
    assert "; --device cpu tries the check itself" in done.stdout
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_several_parts_that_are_named_are_all_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        check, "run_part", lambda name, device: {"title": name, "note": "", "rows": [], "error": "", "seconds": 0}
    )
    assert main(["--device", "cpu", "--out", str(tmp_path), "--part", "numbers", "--part=rapids"]) == 0
    assert list(json.loads((tmp_path / check.RESULT).read_text())["parts"]) == ["numbers", "rapids"]


@pytest.mark.usefixtures("small")
def test_a_device_that_is_the_processor_computes_its_numbers(rows: Rows) -> None:
    numbers.compare("cpu", rows)
    assert [row["network"] for row in rows] == ["GAT", "LAP"]
    for row in rows:
        assert row["loss, 32-true"] == row["gradient, 32-true"] == 0.0
        assert row["gradient, bf16-mixed"] > 0.0
        assert row["deterministic"] == "no operator is refused"


@pytest.mark.usefixtures("small")
def test_numbers_that_are_not_the_processors_fail_the_part_after_all_were_noted(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "LIMIT", -1.0)
    with pytest.raises(RuntimeError, match=r"single precision are not the processor's: GAT \(0\.0, 0\.0\)$"):
        numbers.compare("cpu", rows)
    assert [row["network"] for row in rows] == ["GAT", "LAP"]


def test_what_of_rapids_is_installed_and_does_not_compute_fails_the_part(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Capability("cuml", False, None, NOT_INSTALLED)
    no_device = Capability(CUDA, False, None, "torch is built without CUDA")
    monkeypatch.setattr(rapids, "find_capabilities", lambda: [no_device, absent])
    rapids.compute("cpu", rows)
    broken = Capability("cudf", False, "26.10", "installed, but fails: ImportError: libcudf.so")
    monkeypatch.setattr(rapids, "find_capabilities", lambda: [absent, broken])
    with pytest.raises(RuntimeError, match=r"^cudf: installed, but fails: ImportError: libcudf\.so$"):
        rapids.compute("cpu", rows)
    assert [row["what"] for row in rows] == [CUDA, "cuml", "torch.sparse.mm", "cuml", "cudf", "torch.sparse.mm"]


@pytest.mark.usefixtures("small")
def test_two_trainings_on_the_processor_are_the_same(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "STEPS", 7)
    repeats.compare("cpu", rows)
    assert [row["difference, as it is"] for row in rows] == [0.0, 0.0]


@pytest.mark.usefixtures("small")
def test_a_step_is_timed_with_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    found = speed.measure_step("GAT", "cpu", 4)
    assert set(found) == {"graphs_s", "step_ms", "gather_ms", "model_ms"}
    assert all(value > 0 for value in found.values())


@pytest.mark.processes
@pytest.mark.nightly
def test_a_training_that_is_killed_ends_as_one_that_is_not(rows: Rows) -> None:
    survival.compare("cpu", rows)
    (row,) = rows
    assert row["kills"] == 1
    assert row["same_bits"]


def test_a_table_has_a_column_for_each_key_of_any_row() -> None:
    lines = table([{"network": "GAT", "ms": 0.12345}, {"network": "a|b", "fast": True}])
    assert lines == ["| network | ms | fast |", "|---|---|---|", "| GAT | 0.123 |  |", "| a/b |  | yes |"]
    assert table([]) == ["Nothing was found."]
