"""`kdgat image` as a person types it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run_kdgat import run_kdgat
from tests.image.built import tiny_image


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_image(tmp_path_factory.mktemp("tiny"))


def test_the_definitions_in_the_repository_are_the_rendered_ones() -> None:
    answer = run_kdgat("image", "render", "--check")
    assert answer.returncode == 0, answer.stderr
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
    answer = run_kdgat("image", *words, folder=Path(__file__).parents[2])
    assert answer.returncode == 1
    assert said in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_an_unknown_image_is_wrong_usage() -> None:
    answer = run_kdgat("image", "build", "tpu")
    assert answer.returncode == 2
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
        [sys.executable, "-m", "kdgat.cli.main", "image", "exec", str(tiny), "sh", "-c", shell],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("got\n", 75)


def test_an_image_says_its_digest_and_labels(tiny: Path) -> None:
    answer = run_kdgat("image", "inspect", str(tiny))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0].split()[0] == "sha256"
    assert "org.label-schema.usage.apptainer.version" in answer.stdout
    assert run_kdgat("image", "inspect", str(tiny), "--definition").stdout.startswith("bootstrap: localimage")


def test_the_status_of_the_images_test_is_the_status(tiny: Path) -> None:
    assert run_kdgat("image", "test", str(tiny)).returncode == 0
