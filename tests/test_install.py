"""`make install` names what it takes, shows that it lives, refuses in time, and leaves no process behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from packaging.specifiers import SpecifierSet

import install
from install import (
    CPU,
    CUDA,
    CUDA_12,
    InstallError,
    Needs,
    Signs,
    find_torch,
    forget_half_installed,
    require_room,
    size_of,
    with_other_torch,
)
from tests.support.installing import ROOT, make_install
from tests.support.waiting import wait_until


def wheel(folder: Path, name: str, *requirements: str) -> Path:
    """Write a wheel without content that requires others."""
    path, notes = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    required = "".join(f"Requires-Dist: {one}\n" for one in requirements)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{notes}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}")
        archive.writestr(f"{notes}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{notes}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is pip's only source of packages, whatever this machine's settings name."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with pip and nothing else, which takes seconds to make."""
    path = tmp_path_factory.mktemp("environment") / ".venv"
    venv.create(path, with_pip=True)
    return path


def test_pythons_that_fit_are_those_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = SpecifierSet(project["requires-python"])
    fitting = [minor for minor in range(20) if wanted.contains(f"3.{minor}.1")]
    assert [(3, fitting[0]), (3, fitting[-1])] == [install.OLDEST, install.NEWEST]
    named = [f"Programming Language :: Python :: 3.{minor}" for minor in fitting]
    assert [one for one in project["classifiers"] if ":: Python :: 3." in one] == named


def test_without_a_python_that_fits_all_that_were_tried_are_named(tmp_path: Path) -> None:
    old = tmp_path / "python3.6"
    old.write_text("#!/bin/sh\necho is 3.6\nexit 1\n")
    old.chmod(0o755)
    answer = make_install(tmp_path / "venv", f"PYTHON=python3.99 {old}")
    assert answer.returncode
    assert answer.stdout == ""
    tried = f"python3.99 is not in PATH; {old} is 3.6"
    assert f"kdgat needs Python 3.11, 3.12 or 3.13 ({tried}): install one" in answer.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("requirements", "needs"),
    [((), CPU), (("nvidia-nccl-cu13==2.29.7",), CUDA), (("nvidia-nccl-cu12==2.27.5",), CUDA_12)],
)
@pytest.mark.processes
def test_what_an_environment_takes_is_that_of_the_torch_that_pip_would_install(
    index: Path, tmp_path: Path, requirements: tuple[str, ...], needs: Needs
) -> None:
    wheel(index, "torch", "sympy", *requirements)
    (tmp_path / "constraints.txt").write_text("torch==1.0  # why\n")
    assert find_torch(Path(sys.executable), tmp_path / "constraints.txt") == ("1.0", needs)


def test_another_torch_takes_the_place_of_the_pinned_one_and_brings_its_own_triton(tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    given.write_text("numpy==2.4.6\ntorch-geometric==2.8.1  # why\ntorch==2.13.0  # why\ntriton==3.7.1\n")
    changed = with_other_torch(given, "2.10.0", tmp_path)
    assert changed.read_text() == "numpy==2.4.6\ntorch-geometric==2.8.1  # why\ntorch==2.10.0\n"


@pytest.mark.processes
def test_a_torch_that_is_named_is_what_make_install_asks_for(index: Path, tmp_path: Path) -> None:
    answer = make_install(tmp_path / "venv", "TORCH=2.10.0")
    assert answer.returncode
    assert "torch==2.10.0" in (tmp_path / "venv" / "constraints.txt").read_text()
    assert "torch==2.13.0" not in answer.stderr


@pytest.mark.processes
def test_another_torch_is_installed_into_an_environment_that_is_there_and_stays_when_none_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / ".installed").touch()
    assert "--torch=2.10.0" in make_install(tmp_path, "TORCH=2.10.0", "--dry-run").stdout
    assert "Nothing to be done" in make_install(tmp_path, "--dry-run").stdout


@pytest.mark.processes
def test_where_no_torch_is_found_the_larger_one_is_assumed(index: Path, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").touch()
    assert find_torch(Path(sys.executable), tmp_path / "constraints.txt") == ("", CUDA)


def test_too_little_room_is_refused_with_both_numbers_and_what_is_there_counts(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_room(tmp_path, Needs(1000, 1000))
    with pytest.raises(InstallError, match=rf"the disk of {tmp_path} has .* GB free, and .* GB are needed: .*VENV="):
        require_room(tmp_path, Needs(2 * free, 0))
    (tmp_path / "there").write_bytes(os.urandom(1 << 20))
    needed = size_of(tmp_path)
    assert needed >= 1 << 20
    require_room(tmp_path, Needs(needed, 2 * free))  # all of it is there, so no wheel is fetched


def test_a_package_that_pip_was_interrupted_at_is_not_taken_as_installed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info" / "RECORD").touch()
    forget_half_installed(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_signs_are_few_lines_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signs = Signs(tmp_path, CPU)
    for number in range(20):
        signs.read(f"Collecting package{number}\n")
    signs.read("  Downloading https://an.index/torch-2.13.0-cp313-manylinux_2_28_x86_64.whl (526.6 MB)\n")
    signs.read("  Downloading small-1.0-py3-none-any.whl (1.2 MB)\n")
    signs.show_growth()
    signs.read("Installing collected packages: a, b\n")
    signs.show_growth()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "  10 packages fetched",
        "  20 packages fetched",
        "  fetching torch-2.13.0-cp313-manylinux_2_28_x86_64.whl (526.6 MB)",
        "  all fetched; unpacking and compiling them",
        "  0.0 GB of about 3.7 GB unpacked",
    ]


@pytest.mark.processes
def test_it_installs_into_a_new_environment_and_prints_nothing_on_stdout(index: Path, tmp_path: Path) -> None:
    wheel(index, "torch")
    wheel(index, "family", "torch")
    (tmp_path / "constraints.txt").write_text("torch==1.0\n")
    answer = subprocess.run(
        [sys.executable, ROOT / "install.py", "--venv", "new/.venv", "--constraint", "constraints.txt", "family"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr
    assert "Installing into new/.venv: 3.7 GB (with torch 1.0, for processors alone, without CUDA)" in answer.stderr
    assert "Installed, 0.0 GB in" in answer.stderr
    assert list((tmp_path / "new" / ".venv").glob("lib/python*/site-packages/family-1.0.dist-info"))


def words_of(environment: Path, constraints: Path, *words: str) -> list[str | Path]:
    return [sys.executable, ROOT / "install.py", "--venv", environment, "--constraint", constraints, *words]


@pytest.mark.processes
def test_what_pip_cannot_install_is_said_with_its_last_lines(index: Path, environment: Path, tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.touch()
    words = words_of(environment, constraints, "absent")
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "No matching distribution found for absent" in answer.stderr
    assert f"pip failed; all that it printed: {environment}/install.log" in answer.stderr


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Return the port of a server that takes every connection, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def connected(process: psutil.Process) -> list[psutil.Process]:
    """Return the descendants that hold a connection; pip's short-lived ones may end while they are asked."""
    found = []
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] if one.net_connections() else []
    return found


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_no_process(
    number: signal.Signals,
    silent_server: int,
    index: Path,
    environment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where pip leaves things after a SIGTERM
    constraints, log = tmp_path / "constraints.txt", environment / "install.log"
    constraints.touch()
    log.unlink(missing_ok=True)
    wheel(index, "torch")
    words = words_of(environment, constraints, f"http://127.0.0.1:{silent_server}/family-1.0-py3-none-any.whl")
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(log.is_file, "pip is started")
    process = psutil.Process(started.pid)
    left = wait_until(lambda: connected(process), "pip waits")
    os.killpg(started.pid, number)  # as a terminal, or make, does
    _, said = started.communicate(timeout=60)
    assert started.returncode == install.EXIT_INTERRUPTED
    assert said.endswith("stopped; the same command goes on from there\n")
    assert [process for process in left if process.is_running()] == []
