"""`kdgat image` as a person types it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.cli.main import main

Kdgat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kdgat(capfd: pytest.CaptureFixture[str]) -> Kdgat:
    """Run `kdgat image` in this process; what Apptainer prints counts, too."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(("image", *words))
        printed = capfd.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("test", "nowhere.sif"), "nowhere.sif is not there"),
        (("exec", "nowhere.sif", "--", "true"), "nowhere.sif is not there"),
        (("inspect", "pyproject.toml"), "pyproject.toml is no SIF image"),
        (("build", "cpu", "--base", "python:3.11"), "has no digest"),
        (("build", "cpu", "--base", "nowhere.sif"), "nowhere.sif is not there"),
        (("build", "cpu", "--checkout", "tests"), "is no checkout of kdgat"),
        (("lock", "cpu", "--check", "--checkout", "/"), "is no checkout of kdgat"),
    ],
)
def test_a_mistake_is_one_line_with_the_fix(
    words: tuple[str, ...], said: str, kdgat: Kdgat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("KDGAT_APPTAINER", "/bin/sh")  # some program: none of these starts it
    status, _, error = kdgat(*words)
    assert (status, error.count("\n")) == (1, 1)
    assert said in error


def test_an_unknown_image_is_wrong_usage(kdgat: Kdgat) -> None:
    status, _, error = kdgat("build", "tpu")
    assert status == 2
    assert "'tpu' is not one of" in error
    assert "gpu-cuda13" in error


def test_a_command_takes_over_with_its_own_options_signals_and_status(tiny: Path, tmp_path: Path) -> None:
    shell = "trap 'echo $1 > /mnt/said; exit 75' USR1; echo ready; while :; do sleep .05; done"
    words = ["image", "exec", "--bind", f"{tmp_path}:/mnt", str(tiny), "--", "sh", "-c", shell, "sh", "-x"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kdgat.cli.main", *words], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert (tmp_path / "said").read_text() == "-x\n"


def test_an_image_says_its_digest_and_labels_and_what_it_was_built_from(kdgat: Kdgat, tiny: Path) -> None:
    status, printed, error = kdgat("inspect", str(tiny))
    assert status == 0, error
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["apptainer", "sha256", "size"]
    assert "org.label-schema.usage.apptainer.version" in printed
    version = subprocess.run(["apptainer", "version"], capture_output=True, text=True, check=True).stdout.strip()
    assert f"{version} on this machine" in printed
    assert kdgat("inspect", str(tiny), "--definition")[1].startswith("Bootstrap: scratch")


def test_an_image_shows_the_lock_inside(kdgat: Kdgat, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kdgat("inspect", str(tiny), "--lock")[1] == "tiny==1\n"
    monkeypatch.setattr("kdgat.container.variants.LOCK_IN_IMAGE", "/nowhere.lock")
    status, _, error = kdgat("inspect", str(tiny), "--lock")
    assert status == 1
    assert "has no lock inside" in error


@pytest.mark.parametrize(("content", "said"), [(None, "as it was before"), ("new", "the new one, tested")])
def test_an_interrupted_build_says_which_image_is_there(
    content: str | None, said: str, kdgat: Kdgat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "image.sif"
    out.write_text("old")

    def build_image(*arguments: object) -> Path:
        """Stand for a signal before the new image is in its place, or after."""
        if content is not None:
            fresh = tmp_path / "fresh"
            fresh.write_text(content)
            fresh.replace(out)
        raise SystemExit(130)

    monkeypatch.setattr("kdgat.container.build.build_image", build_image)
    status, _, error = kdgat("build", "cpu", "--out", str(out))
    assert status == 130
    assert f"interrupted: {out} is {said}" in error


def test_the_images_own_test_is_run_and_its_status_is_the_status(kdgat: Kdgat, tiny: Path) -> None:
    status, printed, _ = kdgat("test", str(tiny))
    assert (status, printed) == (0, "made\n")


@pytest.mark.processes
@pytest.mark.parametrize(("status", "calls"), [(0, 2), (1, 1)])
def test_on_a_gpu_the_test_computes_as_well_unless_it_has_failed_before(
    status: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kdgat: Kdgat
) -> None:
    image, program, called = tmp_path / "a.sif", tmp_path / "apptainer", tmp_path / "called"
    image.write_bytes(b"\0" * 32 + b"SIF_MAGIC\0")
    program.write_text(f'#!/bin/sh\necho "$@" >>{called}\n[ $1 = exec ] || exit {status}\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("KDGAT_APPTAINER", str(program))
    assert kdgat("test", "--nv", str(image))[0] == (status or 3)
    lines = called.read_text().splitlines()
    assert lines[0] == f"test --nv {image}"
    assert len(lines) == calls
    if calls == 2:
        assert lines[1].startswith("exec --nv --bind ")
        assert f"{image} python -m kdgat.gpu --part=card --part=numbers --part=rapids --out " in lines[1]
