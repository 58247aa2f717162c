"""What people and programs see of kdgat, as files to compare with: commands, failures, results.

`python -m tests.golden` writes them anew after a change that is meant; then look at the difference.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.generate import commands_page
from kdgat.family import find_family
from kdgat.run import OutputDirectory
from kdgat.run.results import RunResults
from tests.support.command_line import kdgat

GOLDEN = Path(__file__).parent
COMMANDS, FAILURES = GOLDEN / "commands.md", GOLDEN / "failures.txt"
RESULTS = {path.stem: path for path in sorted((GOLDEN / "results").glob("*.json"))}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # which typer decides on when it is imported
HERE = re.compile(r"(?<=searched: ).*?(?=; )|(?<=in use by )pid .*?(?=: )")  # folders of a checkout, process and host
# One mistake of each kind, in an empty folder but for the files of `_prepare`.
MISTAKES = (
    "trian",
    "site nosuch",
    "site show",
    "plan can --no-such-option",
    "train can --out out",
    "plan lap --seeds x",
    "data list --data-root",
    "data list --catalog ''",
    "plan can -O training.max_epoch=2",
    "plan can -O training.max_epochs=x",
    "plan lap --preset quik",
    "plan trees --config none.yaml",
    "plan trees --config list.yaml",
    "data list --data-root nosuch",
    "data inspect nosuch.log",
    "data import nosuch.log --dataset mine --scenario test_x",
    "train can --dataset mine --data-root data --out out",
    "train lap --out file",
    "train lap --out busy",
    "site show nosuch",
    "train lap --out out --site nosuch",
    "train lap --out out --cores 4",
    "report nosuch",
    "report folder",
    "runs show nosuch",
    "runs best folder",
    "evaluate can --run nosuch --data-root data",
    "model export nosuch --out model.onnx",
    "profile nosuch.log --model nosuch --out out",
    "calibrate --model nosuch --clean nosuch.log",
    "detect nosuch.log --calibration nosuch.json",
    "detect nosuch.log --model nosuch",
    "detect nosuch.log --model nosuch.onnx",
    "model list --registry nosuch",
    "model show nosuch",
    "runs usage nosuch",
    "sweep lap --out out --grid nosuch.key=1,2",
    "lap solve nosuch.npy",
    "lap solve text.npy",
    "lap solve text.mtx",
    "lap solve words.csv",
    "lap solve infeasible.csv",
    "stage run nosuch",
    "stage run folder",
    "stage run folder --cores 2",
    "image inspect nosuch.sif",
)


def commands() -> str:
    """Return every command with its arguments, options, defaults and help, whatever the terminal."""
    with _environment(Path("/nonexistent")):
        return commands_page()


def failures() -> str:
    """Return the exit status and the first line of stderr after each of the mistakes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        _prepare(folder)
        with _environment(folder), OutputDirectory(folder / "busy").lock():
            return "\n".join(_failure(line, folder) for line in MISTAKES)


def results_model(family: str) -> type[RunResults]:
    """Return the class that reads results.json of a family."""
    return find_family(family).results


def record() -> None:
    """Write all files anew."""
    COMMANDS.write_text(commands(), encoding="utf-8")
    FAILURES.write_text(failures(), encoding="utf-8")
    for family, path in RESULTS.items():
        results_model(family).read(path).write(path)


@contextmanager
def _environment(home: Path) -> Iterator[None]:
    """Leave out what a terminal, a user and a deployment set."""
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith(("KDGAT_", "XDG_")):
                environment.delenv(name)
        for name, value in {"COLUMNS": "120", "HOME": str(home)}.items():
            environment.setenv(name, value)
        yield


def _prepare(folder: Path) -> None:
    for name in ("folder", "data"):
        (folder / name).mkdir()
    (folder / "file").touch()
    (folder / "list.yaml").write_text("- a\n- b\n")
    for name in ("text.npy", "text.mtx", "words.csv"):
        (folder / name).write_text("no matrix\n")
    (folder / "infeasible.csv").write_text("1,inf\n2,inf\n")


def _failure(line: str, folder: Path) -> str:
    answer = kdgat(*shlex.split(line), folder=folder)
    lines = [
        text.strip("│ ") for text in COLOUR.sub("", answer.stderr).splitlines() if text.startswith(("error: ", "│"))
    ]
    first = lines[0].replace(str(folder), "FOLDER")
    return f"$ kdgat {line}\n{answer.status}: {HERE.sub('...', first)}\n"
