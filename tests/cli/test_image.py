"""`kdgat image` as a person types it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdgat.cli.image import app
from kdgat.image.recipe import LOCK_IN_IMAGE
from tests.image.builds import HEAD
from tests.image.builds import build as build_on
from tests.support.command_line import PROGRAM, kdgat, run_kdgat


def test_the_definitions_in_the_repository_are_the_rendered_ones() -> None:
    answer = kdgat("image", "render", "--check", status=0)
    assert [Path(line).name for line in answer.stdout.split()] == ["kdgat-cpu.def", "kdgat.def"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspect", "nowhere.sif"), "nowhere.sif is not there"),
        (("test", "nowhere.sif"), "nowhere.sif is not there"),
        (("exec", "nowhere.sif", "--", "true"), "nowhere.sif is not there"),
        (("inspect", "pyproject.toml"), "pyproject.toml is no SIF image"),
        (("build", "cpu", "--base", "python:3.11"), "has no digest"),
        (("build", "cpu", "--base", "nowhere.sif"), "nowhere.sif is not there"),
        (("build", "cpu", "--checkout", "tests"), "is no checkout of kdgat"),
        (("lock", "cpu", "--check", "--checkout", "/"), "is no checkout of kdgat"),
    ],
)
def test_a_mistake_is_one_line_with_the_fix(words: tuple[str, ...], said: str) -> None:
    answer = kdgat("image", *words, folder=Path(__file__).parents[2], status=1)
    assert said in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_an_unknown_image_is_wrong_usage() -> None:
    answer = kdgat("image", "build", "tpu", status=2)
    assert "'tpu' is not one of 'cpu', 'gpu'" in answer.stderr


def test_a_command_runs_inside_with_its_own_options_and_status(tiny: Path, tmp_path: Path) -> None:
    answer = run_kdgat(
        "image",
        "exec",
        "--bind",
        f"{tmp_path}:/mnt",
        str(tiny),
        "--",
        "sh",
        "-c",
        "echo $1 > /mnt/said; exit 7",
        "sh",
        "-x",
    )
    assert answer.returncode == 7, answer.stderr
    assert (tmp_path / "said").read_text() == "-x\n"


def test_a_signal_to_kdgat_is_one_to_the_command(tiny: Path) -> None:
    shell = "trap 'echo got; exit 75' USR1; echo ready; while :; do sleep .05; done"
    process = subprocess.Popen(
        [*PROGRAM, "image", "exec", str(tiny), "sh", "-c", shell],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("got\n", 75)


def test_an_image_says_its_digest_and_labels(tiny: Path) -> None:
    answer = kdgat("image", "inspect", tiny, status=0)
    assert [line.split()[0] for line in answer.stdout.splitlines()[:3]] == ["apptainer", "sha256", "size"]
    assert "org.label-schema.usage.apptainer.version" in answer.stdout
    version = subprocess.run(["apptainer", "version"], capture_output=True, text=True, check=True).stdout.strip()
    assert f"{version} on this machine" in answer.stdout
    assert kdgat("image", "inspect", tiny, "--definition").stdout.startswith("bootstrap: localimage")


def test_an_image_shows_the_lock_inside(tiny: Path, tmp_path: Path) -> None:
    assert "has no lock inside" in kdgat("image", "inspect", tiny, "--lock", status=1).stderr
    definition = HEAD + f"%files\n    image.def {LOCK_IN_IMAGE}\n"  # any file of the build will do
    build_on(tiny, definition, tmp_path / "image.sif")
    assert kdgat("image", "inspect", tmp_path / "image.sif", "--lock").stdout == definition


@pytest.mark.parametrize(("content", "said"), [(None, "as it was before"), ("new", "the new one, tested")])
def test_an_interrupted_build_says_which_image_is_there(
    content: str | None, said: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
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

    monkeypatch.setattr("kdgat.image.build.build_image", build_image)
    answer = CliRunner().invoke(app, ["build", "cpu", "--base", str(tiny), "--out", str(out)])
    assert answer.exit_code == 130
    assert f"interrupted: {out} is {said}" in answer.stderr


def test_the_status_of_the_images_test_is_the_status(tiny: Path) -> None:
    assert run_kdgat("image", "test", str(tiny)).returncode == 0
