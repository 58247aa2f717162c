"""The command line in this process: words that belong to each other and words that do not.

Nothing here may start a server, a job, a build or a long computation: the folder has no dataset to train on, what would
go on for long (`detect --follow`, a live bus, installations) is not among the words, and whoever finds nothing wrong in
the words of `train`, `sweep`, `night` or `image` is stopped where the work would begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Never

import pytest
from hypothesis import strategies as st

from kdgat.stage.outcome import EXIT_ENVIRONMENT
from tests.fuzz import assignments, recordings
from tests.fuzz.inputs import TOKENS
from tests.fuzz.target import Target, check_sentence, quiet, snapshot
from tests.fuzz.trees import CROSS
from tests.support.command_line import Answer, kdgat

STATUSES = (0, 1, 2, 3, EXIT_ENVIRONMENT)  # the last one of `stage run`, where its directory is not there
_JOBS = (
    "--preset",
    "--config",
    "--seeds",
    "-O",
    "--site",
    "--walltime",
    "--memory",
    "--cores",
    "--gpus",
    "--account",
    "--quiet",
)
_SWEEP = (
    *("--out", "--grid", "--random", "--trials", "--seed", "--space", "--objective", "--dry-run"),
    *("--parallel-stages", "--pool", "--on-lost-flow", "--detach", *_JOBS),
)
GROUPS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("plan", "can"): (
        "--dataset",
        "--data-root",
        "--preset",
        "--seeds",
        "-O",
        "--site",
        "--walltime",
        "--memory",
        "--config",
        "--hold-out",
        "--out",
        "--stages",
    ),
    ("plan", "lap"): (
        "--preset",
        "--seeds",
        "-O",
        "--sizes",
        "--site",
        "--walltime",
        "--config",
        "--source",
        "--out",
        "--stages",
    ),
    ("plan", "trees"): ("--preset", "--seeds", "-O", "--data-root", "--config", "--out", "--labels"),
    ("train", "can"): (
        "--out",
        "--dataset",
        "--data-root",
        "--preset",
        "--seeds",
        "-O",
        "--config",
        "--parallel-stages",
        "--pool",
    ),
    ("train", "lap"): ("--out", "--preset", "--seeds", "-O", "--sizes", "--site", "--config", "--start-from"),
    ("sweep", "lap"): (*_SWEEP, "--start-from"),
    ("sweep", "can"): (*_SWEEP, "--dataset", "--data-root", "--hold-out", "--catalog"),
    ("sweep", "trees"): (*_SWEEP, "--data-root", "--labels"),
    ("night",): (
        "--data-root",
        "--inbox",
        "--registry",
        "--out",
        "--catalog",
        "--hold-out",
        "--start-from",
        "--retrain",
        "--promotion",
        "--profile",
        "--keep-runs",
        "--settle-s",
        *_JOBS,
    ),
    ("train", "trees"): ("--out", "--data-root", "--preset", "--seeds", "-O", "--config", "--labels", "--detach"),
    ("image", "build"): ("--base", "--out", "--work-folder", "--checkout"),
    ("image", "test"): ("--nv",),
    ("image", "inspect"): ("--definition", "--lock"),
    ("image", "exec"): ("--nv", "--bind", "-B", "--"),
    ("image", "check"): (),
    ("image", "lock"): ("--check", "--checkout"),
    ("config", "show", "can"): ("--preset", "-O", "--seeds", "--config", "--dataset"),
    ("estimate", "can"): ("--dataset", "--data-root", "--preset", "--site", "--walltime", "--history"),
    ("evaluate", "can"): ("--run", "--data-root", "--dataset", "--json", "--profile", "--catalog"),
    ("profile",): ("--model", "--out", "--grow", "--detector", "--seed", "--alarms-per-hour", "--trust"),
    ("detect",): (
        "--model",
        "--detector",
        "--seed",
        "--registry",
        "--profile",
        "--channel",
        "--merge",
        "--format",
        "--out",
        "--picture",
    ),
    ("model", "export"): ("--out", "--format", "--detector", "--seed", "--registry"),
    ("report",): ("--out",),
    ("data", "list"): ("--data-root", "--catalog", "--json"),
    ("data", "inspect"): ("--dataset", "--data-root", "--catalog", "--channel", "--json", "--labels"),
    ("data", "import"): (
        "--dataset",
        "--scenario",
        "--data-root",
        "--name",
        "--attack-free",
        "--replace",
        "--channel",
        "--max-bad-fraction",
    ),
    ("lap", "solve"): ("--json", "--index", "--key", "--out", "--model", "--duals"),
    ("lap", "inspect"): ("--check", "--sample", "--json"),
    ("lap", "import"): ("--out", "--family", "--mc64", "--force"),
    ("lap", "merge"): ("--out", "--storage", "--forbidden-from", "--force"),
    ("lap", "bucket"): ("--out", "--seed", "--force"),
    ("lap", "generate"): ("--out", "--families", "--sizes", "--count", "--seed", "--storage", "-p", "--tag", "--force"),
    ("runs", "list"): ("--family", "--json"),
    ("runs", "show"): ("--json",),
    ("runs", "compare"): ("--json",),
    ("runs", "best"): ("--family", "--quiet", "--json"),
    ("model", "list"): ("--registry", "--json"),
    ("model", "show"): ("--registry", "--json"),
    ("model", "promote"): ("--registry",),
    ("site", "list"): (),
    ("site", "show"): (),
    ("runs", "usage"): ("--site", "--json"),
    ("stage", "run"): ("--quiet", "--wait-s", "--site", "--walltime", "--cores"),
    ("nonsense",): ("--help",),
}
BEGINNING = ("train", "sweep", "night", "image")
"""Groups whose words are tried more often than the others': whoever accepts wrong ones starts a server or a build."""
RIGHT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("train", "can"): ("--dataset", "cars", "--data-root", ".", "--out", "new"),
    ("train", "lap"): ("--out", "new"),
    ("train", "trees"): ("--data-root", "trees", "--out", "new"),
    ("sweep", "lap"): ("--out", "new", "--grid", "training.learning_rate=0.1,0.2"),
    ("sweep", "can"): ("--dataset", "cars", "--data-root", ".", "--out", "new", "--space", "space.yaml"),
    ("sweep", "trees"): ("--data-root", "trees", "--out", "new", "--grid", "training.max_epochs=1,2"),
    ("night",): ("cars", "--data-root", ".", "--inbox", "empty", "--registry", "registry", "--out", "new"),
    ("image", "build"): ("cpu", "--base", "file"),
    ("image", "exec"): ("file", "--", "true"),
    ("image", "lock"): ("gpu",),
}
"""Words with which a command finds nothing wrong, or little: what is drawn comes behind them."""
FLAGS = ("--dry-run", "--detach", "--quiet", "--nv", "--definition", "--lock", "--check")
FITTING: dict[str, tuple[str, ...]] = {
    "--grid": ("training.max_epochs=1,2", "training.max_epochs=", "model.width=[1],[2]", "seeds=[1],[2]", "a.b=1"),
    "--random": (
        "training.learning_rate=log:1e-4:1e-2",
        "training.learning_rate=log:0:1",
        "training.max_epochs=int:1:9",
    ),
    "--trials": ("1", "3", "0", "1000001"),
    "--seed": ("0", "7", "-1"),
    "--space": ("space.yaml", "own.yaml", "file", "wide.csv", "missing", "."),
    "--objective": ("validation", "loss", "f1", "gap"),
    "--seeds": ("0", "0 1 2", "-1", "1 1", "99999999999999999999"),
    "-O": ("training.max_epochs=2", "training.max_epoch=2", "seeds=[0]", "training=3", "stages=[]", "stages=[normal]"),
    "--override": ("training.learning_rate=inf",),
    "--preset": ("quick", "full", "tutorial", "quik"),
    "--config": ("own.yaml", "space.yaml", "wide.csv", "missing", "."),
    "--site": ("local", "example", "exampel", "slurm-test"),
    "--walltime": ("01:00:00", "-1:00:00", "99:99:99", "1-00:00:00", "0"),
    "--memory": ("8G", "-8G", "0", "8X"),
    "--cores": ("1", "0", "-1", "1000000"),
    "--gpus": ("0", "1", "-1"),
    "--parallel-stages": ("1", "0", "1000000"),
    "--pool": ("0", "2", "-1"),
    "--on-lost-flow": ("detach", "stop", "stay"),
    "--out": ("new", "file", "file/below", "empty", "/dev/null", "/dev/null/x", "cars"),
    "--dataset": ("cars", "carz", "..", "empty"),
    "--data-root": (".", "trees", "missing", "file", "empty"),
    "--hold-out": ("drive", "nobody", "a b"),
    "--start-from": ("scratch", "current", "missing", "file", "new"),
    "--retrain": ("new", "always", "never"),
    "--promotion": ("accept=not_worse", "margin=0.1", "margin=nan", "marign=1", "held_kinds=[dos]", "held_kinds=dos"),
    "--keep-runs": ("1", "0"),
    "--settle-s": ("0", "-1", "inf", "nan"),
    "--registry": ("registry", "file", "empty"),
    "--inbox": ("empty", "file", "file/below", "inbox", "cars"),
    "--catalog": ("own.yaml", "file", "missing", "wide.csv"),
    "--labels": ("label", "own.yaml"),
    "-p": ("preset=quick", "preset", "out=new", "config={}", "overrides=[1]"),
    "--base": ("file", "missing.sif", "library@sha256:0", "docker.io/a@sha256:" + "0" * 64),
    "--work-folder": ("empty", "file", "file/below"),
    "--checkout": (".", "missing", "file"),
    "--bind": ("empty:/x:ro", "a:b:c:d", "missing", ":"),
}
VALUES = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "nan",
    "inf",
    "1e9",
    "x",
    "",
    " ",
    "can",
    "quick",
    "full",
    "local",
    "none",
    "a=b",
    "training.max_epochs=2",
    "seeds=[0]",
    "data.seed=-1",
    "16:00:00",
    "8G",
    "json",
    "csv",
    "onnx",
    "uniform",
    "density=2",
    ".",
    "..",
    "file",
    "file/below",
    "missing",
    "missing/below",
    "empty",
    "empty/new",
    "drive.csv",
    "drive.log",
    "cost.csv",
    "cost.npy",
    "store.h5",
    "own.yaml",
    "new.json",
    "train_a",
    "--help",
    "--",
    "-",
    "\0",
    "é",
    "A" * 300,
    "/dev/null",
    "/dev/null/x",
    "wide.csv",
    "cars",
    "trees",
    "cpu",
    "gpu",
    "example",
    "can/cars",
    "nightly/cars",
    "training.learning_rate=0.1,0.2",
    "training.learning_rate=log:1e-4:1e-2",
    "training.max_epochs=int:1:9",
    "accept=not_worse",
    "margin=0.1",
    "margin=nan",
    "overrides=[]",
    "space.yaml",
)
KEPT = ("drive.csv", "drive.log", "cost.csv", "cost.npy", "store.h5", "own.yaml", "file", "wide.csv")


@cache
def files() -> dict[str, bytes]:
    """Return the files that the folder of each example has."""
    matrices = assignments.samples()
    return {
        "drive.csv": recordings.samples()["text"][0],
        "drive.log": recordings.samples()["text"][-1],
        "wide.csv": "t,é\n1,2\n".encode("utf-16"),
        "cost.csv": matrices[".csv"][0],
        "cost.npy": matrices[".npy"][0],
        "store.h5": matrices[".h5"][0],
        "space.yaml": b"""\
grid: {training.max_epochs: [1, 2]}
random: {training.learning_rate: log:1e-4:1e-2}
trials: 4
""",
        "own.yaml": b"training: {max_epochs: 2}\n",
        "file": b"x",
    }


@st.composite
def _command_lines(draw: st.DrawFn, groups: Sequence[tuple[str, ...]]) -> list[str]:
    group = draw(st.sampled_from(groups))
    words = [*group, *(RIGHT.get(group, ()) if draw(st.integers(0, 3)) else ())]
    options = GROUPS[group]
    for _ in range(draw(st.integers(0, 5))):
        option = draw(st.sampled_from(options)) if options and draw(st.integers(0, 3)) else None
        is_flag = option in FLAGS
        words += [] if option is None else [option]
        if option is not None and (is_flag or option in FITTING) and draw(st.integers(0, 3)):
            words += [] if is_flag else draw(st.sampled_from(FITTING[option])).split()
        else:
            words.append(draw(_WORDS))
    return words


_WORDS = st.one_of(
    st.sampled_from(VALUES),
    st.sampled_from(VALUES),
    st.sampled_from(TOKENS).map(lambda token: token.decode("utf-8", "replace")),
)


class _BeginsError(BaseException):
    """Nothing was found wrong: a server, a build or another program would start now."""


def _begins(*_: object, **__: object) -> Never:
    raise _BeginsError


# Where the work of a command begins that everything was in order for.
BEGINNINGS = (
    "flows.training.run_training",
    "flows.sweep.run_sweep",
    "flows.stages.run_flow",
    "flows.detachment.detach",
    "kdgat.container.build.build_image",
    "kdgat.container.lock.write_lock",
    "kdgat.container.lock.check_lock",
    "kdgat.container.wheels.fetch_wheels",
    "os.execve",
)


def _check(folder: Path, words: list[str]) -> None:
    for name in ("empty", "home", "cars", "trees"):
        (folder / name).mkdir()
    for name, content in files().items():
        (folder / name).write_bytes(content)
    (folder / "cars" / "train_a__drive.csv").write_bytes(files()["drive.csv"])
    (folder / "trees" / "a.swc").write_bytes(CROSS)
    with quiet(), pytest.MonkeyPatch.context() as patched:
        patched.setenv("KDGAT_HOME", str(folder / "home"))
        patched.delenv("PREFECT_API_URL", raising=False)
        for name in BEGINNINGS:
            patched.setattr(name, _begins)
        try:
            answer = kdgat(*words, folder=folder)
        except _BeginsError:
            answer = Answer(0, "", "")
    assert answer.status in STATUSES, answer
    assert "Traceback (most recent call last)" not in answer.stderr + answer.stdout
    if answer.stderr.startswith("error: "):
        assert answer.status != 0, answer
        check_sentence(answer.stderr.splitlines()[0].removeprefix("error: "))
    left = [name for name in snapshot(folder) if ".tmp" in name]
    assert not left, f"left behind: {left}"
    changed = (
        [name for name in KEPT if (folder / name).read_bytes() != files()[name]]
        if "--force" not in words and "--replace" not in words and answer.status
        else []
    )
    assert not changed, f"a command that failed has changed {changed}"


def _of_groups(name: str, share: int, *, begin: bool) -> Target:
    groups = [group for group in GROUPS if (group[0] in BEGINNING) == begin]
    return Target(name, share, lambda: _command_lines(groups), _check)


TARGETS = (
    _of_groups("command-line", 80, begin=False),
    _of_groups("command-line-beginning", 80, begin=True),
)
