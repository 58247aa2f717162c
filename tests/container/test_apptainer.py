"""Apptainer is found, asked through spython, and run; a real one, with an image of two megabytes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.container import ImageError, apptainer
from kdgat.container.apptainer import command_environment, exec_command, find_apptainer
from tests.container.built import require_apptainer


def test_spython_says_the_version_of_the_program_that_was_found(tiny: Path) -> None:
    said = subprocess.run([find_apptainer(), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    assert apptainer.apptainer_version() == said


def test_words_reach_the_command_unchanged_and_its_status_comes_back(tiny: Path) -> None:
    answer = apptainer.execute(tiny, ["sh", "-c", 'echo "$1"; echo err >&2; exit 3', "sh", "a  b $HOME"])
    assert answer.status == 3
    assert "a  b $HOME\n" in answer.text
    assert "err\n" in answer.text


def test_a_folder_is_bound_where_it_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("seen inside")
    answer = apptainer.execute(tiny, ["cat", "/mnt/file"], binds=[f"{tmp_path}:/mnt:ro"])
    assert answer.text == "seen inside"
    with pytest.raises(ImageError, match=r"--bind /nowhere:/mnt: /nowhere is not there"):
        apptainer.execute(tiny, ["cat"], binds=["/nowhere:/mnt"])


def test_asking_leaves_the_environment_as_it_was(tiny: Path) -> None:
    before = dict(os.environ)
    apptainer.inspect(tiny)
    assert dict(os.environ) == before


def test_inspection_tells_labels_and_definition(tiny: Path) -> None:
    found = apptainer.inspect(tiny)
    assert found.labels["tiny.version"] == "7"
    assert found.labels["org.label-schema.usage.apptainer.version"]
    assert found.definition.startswith("Bootstrap: scratch")


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nowhere\.sif is not there: build it"):
        apptainer.check_image(tmp_path / "nowhere.sif")
    with pytest.raises(ImageError, match="is a folder"):
        apptainer.check_image(tmp_path)
    (tmp_path / "text.sif").write_text("no image")
    with pytest.raises(ImageError, match="is no SIF image"):
        apptainer.check_image(tmp_path / "text.sif")


def test_a_damaged_image_is_refused_in_apptainers_words(tiny: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sif"
    damaged.write_bytes(tiny.read_bytes()[:100])
    with pytest.raises(ImageError, match="cannot be read"):
        apptainer.inspect(damaged)


def test_without_the_program_the_fix_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KDGAT_APPTAINER", raising=False)
    monkeypatch.setattr(apptainer, "INSTALLED", tmp_path / "apptainer")
    with pytest.raises(ImageError, match=r"bash containers/install-apptainer\.sh.*module load apptainer\)$"):
        find_apptainer()
    (tmp_path / "singularity").write_text("#!/bin/sh\n")
    (tmp_path / "singularity").chmod(0o755)
    with pytest.raises(ImageError, match=r"SingularityCE.*; then export KDGAT_APPTAINER="):
        find_apptainer()
    monkeypatch.setenv("KDGAT_APPTAINER", str(tmp_path / "wrong"))
    with pytest.raises(ImageError, match=r"KDGAT_APPTAINER=.*wrong is no program"):
        find_apptainer()


@pytest.mark.image
def test_the_program_is_found_where_the_installer_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = require_apptainer()
    installed = tmp_path / "usr" / "bin" / "apptainer"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(real.resolve())
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(apptainer, "INSTALLED", installed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_apptainer() == installed
    # No `singularity` lies beside it: spython gets one of ours.
    assert apptainer.apptainer_version().startswith("apptainer version")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_command_and_its_status_comes_back(tiny: Path, number: signal.Signals) -> None:
    shell = f"trap 'echo got; exit 42' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep .05; done"
    words = exec_command(tiny, ["sh", "-c", shell])
    process = subprocess.Popen(words, env=command_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("got\n", 42)


@pytest.mark.processes
def test_reading_images_needs_no_spython_until_it_is_used() -> None:
    code = "import sys, kdgat.container.apptainer, kdgat.container.build; sys.exit('spython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
