import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kdgat
from kdgat.container import ImageError, probe
from kdgat.container.agreement import (
    check_agreement,
    check_named_image,
    describe_here,
    describe_image,
    find_differences,
    find_image,
    image_notes,
    keep_notes,
    torch_of_image,
)

HERE = {
    "python": "3.11.7",
    "kdgat": "0.1.0",
    "dask": "2026.8.0",
    "distributed": "2026.8.0",
    "cloudpickle": "3.1.2",
    "prefect": "3.8.8",
    "location": "/home/someone/kdgat",
    "source": "0123456789abcdef",
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A file that was asked before: what the Python in it said is kept beside it."""
    path = tmp_path / "kdgat.sif"
    path.write_bytes(b"an image")
    return path


def remember(image: Path, **changes: str | None) -> None:
    notes = image_notes(image)
    keep_notes(image, notes.model_copy(update={"contents": {"python": {**describe_here(), **changes}}}))


@pytest.mark.parametrize("changes", [{}, {"python": "3.11.2"}, {"prefect": None}, {"location": "/opt/kdgat"}])
def test_what_changes_nothing_for_a_stage_is_no_difference(changes: dict[str, str | None]) -> None:
    assert find_differences(HERE, {**HERE, **changes}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"python": "3.12.1"}, "Python 3.12.1 in the image, 3.11.7 here"),
        ({"dask": "2026.7.1"}, "dask 2026.7.1 in the image, 2026.8.0 here"),
        ({"distributed": None}, "distributed is missing in the image, 2026.8.0 here"),
        ({"cloudpickle": "3.0.0"}, "cloudpickle 3.0.0 in the image, 3.1.2 here"),
        ({"prefect": "3.8.7"}, "prefect 3.8.7 in the image, 3.8.8 here"),
        ({"kdgat": None, "source": None}, "kdgat is missing in the image, 0.1.0 here"),
        ({"source": "f" * 64}, "source of kdgat ffffffffffff in the image, 0123456789ab here (/home/someone/kdgat)"),
    ],
)
def test_a_difference_is_said_with_both_sides(changes: dict[str, str | None], expected: str) -> None:
    assert [difference.text for difference in find_differences(HERE, {**HERE, **changes})] == [expected]


@pytest.mark.parametrize(
    ("ours", "changes", "fix"),
    [
        ({"python": "3.12.1"}, {"python": "3.11.2"}, "make install PYTHON=python3.11"),
        ({}, {"python": "3.10.1"}, "kdgat image build"),
        ({}, {"dask": "2026.7.1"}, "constraints.txt: make install for this machine, kdgat image build for the image"),
        ({}, {"kdgat": "0.0.9"}, "build the image again"),
        ({}, {"source": "f" * 64}, "build the image again"),
    ],
)
def test_the_fix_is_on_the_side_that_can_be_mended(ours: dict[str, str], changes: dict[str, str], fix: str) -> None:
    (difference,) = find_differences({**HERE, **ours}, {**HERE, **changes})
    assert fix in difference.fix


def test_a_version_that_pip_noted_before_the_source_changed_is_noted_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "kdgat"\nversion = "0.2.0"\n')
    here = {**HERE, "location": str(tmp_path / "kdgat")}
    (difference,) = find_differences(here, {**here, "kdgat": "0.2.0"})
    assert "pip install --editable . again" in difference.fix
    (difference,) = find_differences({**here, "kdgat": "0.2.0"}, here)
    assert "build the image again" in difference.fix


def test_notes_of_an_older_kdgat_are_no_answer(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {name: value for name, value in describe_here().items() if name not in ("prefect", "cloudpickle")}
    assert [difference.text for difference in find_differences(HERE, {"python": HERE["python"]})] != []
    notes = image_notes(image)
    keep_notes(image, notes.model_copy(update={"contents": {"python": older}}))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ImageError, match=r"apptainer is neither|does not run in it"):  # it is asked again
        check_agreement(image)


def test_an_image_of_other_versions_is_refused_with_all_of_them_and_the_fix(image: Path) -> None:
    remember(image, python="3.12.1", distributed="2025.1.0")
    with pytest.raises(ImageError) as refusal:
        check_agreement(image)
    here = describe_here()
    for text in ("kdgat.sif", "3.12.1", str(here["python"]), "2025.1.0", str(here["distributed"]), "kdgat image build"):
        assert text in str(refusal.value)


def test_an_image_is_asked_once_and_this_side_every_time(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)  # nothing can be asked
    remember(image)
    assert check_agreement(image).contents["python"]["source"] == describe_here()["source"]
    image.write_bytes(b"another image")
    with pytest.raises(ImageError, match=r"apptainer is neither|python does not run in it"):
        check_agreement(image)


def test_an_image_is_asked_without_what_a_person_has_set_for_other_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "apptainer"
    said = '{"binds": "%s", "path": "%s", "python": "%s", "cache": "%s"}'
    names = ("APPTAINER_BIND", "SINGULARITYENV_PYTHONPATH", "PYTHONPATH", "APPTAINER_CACHEDIR")
    program.write_text(f"#!/bin/sh\nprintf '{said}' " + " ".join(f'"${name}"' for name in names) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("KDGAT_APPTAINER", str(program))
    for name in names:
        monkeypatch.setenv(name, "/x")
    assert describe_image("a.sif") == {"binds": "", "path": "", "python": "", "cache": "/x"}


def test_what_torch_in_an_image_is_built_for_is_asked_once_and_kept_beside_what_an_older_kdgat_knew(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = tmp_path / "apptainer", tmp_path / "calls"
    program.write_text(f"""#!/bin/sh\nfor last; do :; done; echo $last >>{calls}; echo '{{"cuda": "12.8"}}'\n""")
    program.chmod(0o755)
    monkeypatch.setenv("KDGAT_APPTAINER", str(program))
    remember(image)
    assert torch_of_image(image) == torch_of_image(image) == {"cuda": "12.8"}
    assert calls.read_text() == "torch\n"
    assert image_notes(image).contents["python"] == {**describe_here(), "torch": {"cuda": "12.8"}}
    check_agreement(image)  # asks nothing


def test_an_image_that_only_a_node_can_find_is_not_checked_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("$OF_THE_NODE/kdgat.sif", "${OF_THE_NODE}/kdgat.sif", "docker://registry/kdgat"):
        said: list[str] = []
        assert find_image(name) is None
        assert check_named_image(name, log=said.append) is None
        (line,) = said
        assert name in line
        assert "not checked" in line
    monkeypatch.setenv("OF_THE_NODE", str(tmp_path))
    assert find_image("$OF_THE_NODE/kdgat.sif") is None  # elsewhere than on the node
    (tmp_path / "kdgat.sif").touch()
    assert find_image("$OF_THE_NODE/kdgat.sif") == tmp_path / "kdgat.sif"


def test_an_image_with_a_plain_path_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is not there: build it"):
        check_named_image(str(tmp_path / "kdgat.sif"))


def test_the_source_hash_tells_any_change_and_nothing_that_running_or_a_wheels_build_leaves(tmp_path: Path) -> None:
    copy = tmp_path / "kdgat"
    shutil.copytree(Path(kdgat.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    original = probe.hash_of_source(copy)
    assert original == probe.hash_of_source(Path(kdgat.__file__).parent)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "left.py").write_text("left")
    (copy / ".hidden.py").write_text("left")
    (copy / "notes.txt~").write_text("left")
    (copy / "can" / "evaluation" / "results.schema.json").write_text("{}")
    assert probe.hash_of_source(copy) == original
    (copy / "stage" / "errors.py").rename(copy / "stage" / "mistakes.py")
    assert probe.hash_of_source(copy) != original
    (copy / "stage" / "mistakes.py").rename(copy / "stage" / "errors.py")
    assert probe.hash_of_source(copy) == original
    with (copy / "can" / "presets" / "quick.yaml").open("a") as preset:
        preset.write("\n")
    assert probe.hash_of_source(copy) != original


@pytest.mark.processes
def test_the_text_of_the_probe_says_the_same_in_a_bare_interpreter() -> None:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == probe.describe_environment()
    no_packages = subprocess.run([sys.executable, "-S", "-I", "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(no_packages.stdout)["kdgat"] is None
