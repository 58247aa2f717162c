"""Every command that writes refuses a place that it cannot write to, in one line, before it computes anything."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.can.config import DataConfig
from kdgat.can.inputs import refuse_within_dataset
from kdgat.cluster.script import watcher_name
from kdgat.family.night import NightlyDirectory
from kdgat.run import OutputDirectory
from tests.support.command_line import Answer
from tests.support.commands import write_commands

# What else is wrong, such as a run that is not there, is only looked at afterwards.
COMMANDS = (
    "train can --dataset x --data-root . --out PLACE",
    "train lap --out PLACE",
    "train trees --out PLACE",
    "evaluate can --run none --data-root . --json PLACE",
    "profile x.csv --model none --out PLACE",
    "model export none --out PLACE",
    "detect x.csv --out PLACE",
    "detect x.csv --picture PLACE.html",
    "data synth --out PLACE",
    "data import x.csv --dataset d --scenario train_a --data-root PLACE",
    "data inspect tree.swc --picture PLACE.svg",
    "lap generate --sizes 4 --out PLACE",
    "lap import x.npy --out PLACE",
    "lap merge x.h5 --out PLACE",
    "lap bucket x.h5 --out PLACE",
    "lap solve x.npy --out PLACE.csv",
    "lap analyze --json PLACE",
    "image build cpu --out PLACE",
)
FILE_OPTIONS = ("--json", "--out", "--picture")
FOLDERS = ("train", "data synth", "lap bucket")  # what they write to --out is a folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_below_a_file_is_refused_in_one_line(
    tmp_path: Path, kdgat: Callable[..., Answer], command: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tree.swc").write_text("1 2 0 0 0 1 -1\n")
    before = sorted(tmp_path.rglob("*"))
    answer = kdgat(*command.replace("PLACE", "file/below").split(), folder=tmp_path)
    assert answer.status in (1, 2)
    assert answer.stderr.startswith("error: --")
    assert answer.stderr.count("\n") == 1
    assert "so nothing can be made below it: choose another path" in answer.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command.split()[-2] in FILE_OPTIONS and not command.startswith(FOLDERS)],
)
def test_a_folder_in_place_of_a_file_is_refused_in_one_line_before_anything_is_loaded(
    tmp_path: Path, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "kdgat.can.evaluation.scoring", None)  # and with it torch
    (tmp_path / "tree.swc").write_text("1 2 0 0 0 1 -1\n")
    place = command.split()[-1].replace("PLACE", "folder")
    (tmp_path / place).mkdir()
    answer = kdgat(*command.replace("PLACE", "folder").split(), folder=tmp_path)
    assert answer.status in (1, 2)
    assert re.fullmatch(rf"error: --\w+ {re.escape(place)} is a folder: name a (file in it|folder.*)\n", answer.stderr)


def test_mistakes_of_profile_are_said_before_it_loads_a_model(
    tmp_path: Path, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kdgat.can.evaluation.scoring", None)
    (tmp_path / "run").mkdir()
    (tmp_path / "drive.csv").write_text("kept")
    words = ("profile", "drive.csv", "--model", "run", "--out")
    refused = kdgat(*words, "./drive.csv", folder=tmp_path, status=1).stderr
    assert refused.startswith("error: --out drive.csv is the recording drive.csv, which it would replace")
    assert "run is not the output of a training run" in kdgat(*words, "car.json", folder=tmp_path, status=1).stderr
    words = ("profile", "drive.csv", "--out", "car.json", "--detector", "normal", "--seed", "0")
    refused = kdgat(*words, folder=tmp_path, status=1).stderr
    assert refused.startswith("error: --detector, --seed is of a network's threshold: give --model RUN")
    assert (tmp_path / "drive.csv").read_text() == "kept"


@pytest.mark.parametrize("command", ["plan lap --out", "estimate lap --out"])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_what_only_reads_an_output_directory_names_the_file_that_stands_there(
    tmp_path: Path, kdgat: Callable[..., Answer], command: str, place: str
) -> None:
    (tmp_path / "file").touch()
    answer = kdgat(*command.split(), place, folder=tmp_path, status=1)
    assert answer.stderr == f"error: --out {place}: file is a file: name the folder of a run\n"


@pytest.mark.parametrize(
    "command",
    [
        "train can --dataset synthetic --data-root . --out taken",
        "train lap --out taken",
        "train lap --out taken --site example",
        "train lap --out taken --site example --detach",
        "train trees --data-root trees --out taken",
        "sweep lap --grid training.learning_rate=0.001,0.002 --out taken",
        "night synthetic --data-root . --inbox inbox --registry registry --out taken",
    ],
)
def test_a_place_that_another_command_uses_is_refused_by_its_pid_before_a_server_starts(
    tmp_path: Path, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "flows.stages", None)  # whoever starts a server needs it
    for name in ("synthetic", "inbox", "trees"):
        (tmp_path / name).mkdir()
    (tmp_path / "trees" / "a.swc").write_text("1 2 0 0 0 1 -1\n2 2 1 0 0 1 1\n")
    is_night = command.startswith("night")
    taken = NightlyDirectory(tmp_path / "taken") if is_night else OutputDirectory(tmp_path / "taken")
    with taken.lock():
        before = sorted((tmp_path / "taken").rglob("*"))
        answer = kdgat(*command.split(), folder=tmp_path, status=1)
        assert sorted((tmp_path / "taken").rglob("*")) == before
    assert answer.stderr.startswith(f"error: {tmp_path}/taken is in use by pid {os.getpid()} on ")
    assert "wait until it ends, or stop it" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--detach",)])
def test_a_run_that_a_job_watches_is_refused_by_that_job_and_how_it_ends_for_good(
    tmp_path: Path, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    name = watcher_name(tmp_path / "taken")
    squeue = f"echo '7|RUNNING|n1|None|{name}'; echo '8|PENDING||Dependency|{name}'"
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", squeue=squeue))
    with OutputDirectory(tmp_path / "taken").lock():
        answer = kdgat("train", "lap", "--out", "taken", "--site", "example", *words, folder=tmp_path, status=1)
    refused = f"error: --out taken: job 7 watches this run: let it, or end it by `scancel --name={name}` first\n"
    assert answer.stderr == refused


@pytest.mark.parametrize(
    "command",
    [
        "train can --dataset cars --data-root data --out PLACE",
        "sweep can --dataset cars --data-root data --grid training.learning_rate=0.001,0.002 --out PLACE",
        "night cars --data-root data --inbox inbox --registry registry --out PLACE",
    ],
)
@pytest.mark.parametrize("place", ["data/cars", "data/cars/runs/1", "link/run"])
def test_an_output_directory_in_the_datasets_folder_is_refused_before_anything_is_written(
    tmp_path: Path, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    monkeypatch.setitem(sys.modules, "flows.stages", None)  # whoever starts a server needs it
    for name in ("data/cars", "inbox"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("data/cars")
    before = sorted(tmp_path.rglob("*"))
    answer = kdgat(*command.replace("PLACE", place).split(), folder=tmp_path, status=1)
    assert answer.stderr.startswith(
        f"error: --out {place} lies in the folder of dataset 'cars', {tmp_path}/data/cars: "
    )
    assert answer.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_data_may_lie_in_an_output_directory(tmp_path: Path) -> None:
    refuse_within_dataset(DataConfig(dataset="cars", data_root=str(tmp_path / "out" / "data")), tmp_path / "out")
    refuse_within_dataset(DataConfig(dataset="cars", data_root=str(tmp_path)), tmp_path / "cars-run")
