"""What %test finds out inside an image."""

import platform
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from kdgat.container import ImageError, contents
from kdgat.container.contents import compare_with_lock, find_faults, main, read_pins


@pytest.fixture
def no_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stages to import: those of the real ones, with torch and all, are imported in the real image."""
    monkeypatch.setattr(contents, "family_names", list)


def test_missing_other_and_foreign_packages_are_told_apart() -> None:
    pins = {"one": "1", "two": "2"}
    assert compare_with_lock(pins, {"one": "1", "two": "2", "kdgat": "0", "pip": "1"}) == []
    assert compare_with_lock(pins, {"two": "3", "three": "3"}) == [
        "one 1 is missing",
        "two is 3, the lock says 2",
        "three 3 is not in the lock",
    ]


def test_a_lock_is_read_with_hashes_comments_and_local_versions() -> None:
    text = "# comment\nTorch_X==2.13.0+cpu \\\n    --hash=sha256:00\nb==1\n"
    assert read_pins(text) == {"torch-x": "2.13.0+cpu", "b": "1"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "torch>=2\n"])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(ImageError, match="no lock"):
        read_pins(text)


def test_an_interpreter_is_measured_against_a_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_families: None
) -> None:
    here = {canonicalize_name(found.name): found.version for found in metadata.distributions()}
    lock = tmp_path / "good.lock"
    lock.write_text("".join(f"{name}=={version}\n" for name, version in here.items()))
    minor = ".".join(platform.python_version_tuple()[:2])
    assert find_faults(lock, minor, ["json", "yaml"]) == []
    assert main(["--lock", str(lock), "--python", minor, "json"]) == 0
    assert find_faults(lock, "3.9", ["no_such_module"]) == [
        f"Python is {minor}, not 3.9",
        "import no_such_module: ModuleNotFoundError: No module named 'no_such_module'",
    ]
    lock.write_text(f"{lock.read_text()}torch==0.0\n")
    capsys.readouterr()
    assert main(["--lock", str(lock), "--python", minor]) == 1
    assert f"torch is {here['torch']}, the lock says 0.0" in capsys.readouterr().err


def test_the_stages_of_every_family_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("torch==0.0\n")
    monkeypatch.setattr(contents, "family_names", lambda: ("toy",))
    monkeypatch.setattr(contents, "family_package", lambda name: f"no_package.{name}")
    assert main(["--lock", str(lock), "--python", "3.11"]) == 1
    assert "import no_package.toy.stages: ModuleNotFoundError" in capsys.readouterr().err


def test_what_needs_a_driver_is_looked_for_where_there_is_none_and_imported_where_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_families: None
) -> None:
    here = {canonicalize_name(found.name): found.version for found in metadata.distributions()}
    lock = tmp_path / "good.lock"
    lock.write_text("".join(f"{name}=={version}\n" for name, version in here.items()))
    (tmp_path / "needs_driver.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))
    minor = ".".join(platform.python_version_tuple()[:2])
    words = ["--lock", str(lock), "--python", minor, "--need-driver"]
    monkeypatch.setattr(contents, "has_driver", lambda: False)
    assert main([*words, "needs_driver"]) == 0
    assert "no NVIDIA driver here, so not imported: needs_driver" in capsys.readouterr().out
    assert main([*words, "not_there"]) == 1
    monkeypatch.setattr(contents, "has_driver", lambda: True)
    assert main([*words, "needs_driver"]) == 1
    assert "import needs_driver: RuntimeError: no driver" in capsys.readouterr().err


def test_a_compiler_that_fails_is_a_fault_where_triton_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_families: None
) -> None:
    pytest.importorskip("triton", reason="comes with torch for CUDA")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "/bin/false")
    lock = tmp_path / "one.lock"
    lock.write_text("nothing==1\n")
    faults = find_faults(lock, "3.11", [])
    assert [fault for fault in faults if "Triton cannot compile its launchers" in fault]
