"""The command line in this process: words that belong to each other and words that do not.

Nothing here may start a server, a job or a long computation: the folder has no dataset to train on, and what would go
on for long (`detect --follow`, a live bus, images, installations) is not among the words.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from kdgat.stage.outcome import EXIT_ENVIRONMENT
from tests.fuzz import assignments, recordings
from tests.fuzz.inputs import TOKENS
from tests.fuzz.target import Target, check_sentence, quiet, snapshot
from tests.support.command_line import kdgat

STATUSES = (0, 1, 2, 3, EXIT_ENVIRONMENT)  # the last one of `stage run`, where its directory is not there
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
    ("config", "show", "can"): ("--preset", "-O", "--seeds", "--config", "--dataset"),
    ("estimate", "can"): ("--dataset", "--data-root", "--preset", "--site", "--walltime", "--history"),
    ("evaluate", "can"): ("--run", "--data-root", "--dataset", "--json", "--calibration", "--catalog"),
    ("calibrate",): ("--run", "--data-root", "--out", "--dataset", "--scenario"),
    ("detect",): (
        "--model",
        "--detector",
        "--seed",
        "--registry",
        "--calibration",
        "--channel",
        "--merge",
        "--format",
        "--out",
        "--picture",
    ),
    ("export",): ("--out", "--format", "--detector", "--seed", "--registry"),
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
    ("history",): ("--site", "--json"),
    ("stage", "run"): ("--quiet", "--wait-s", "--site", "--walltime", "--cores"),
    ("nonsense",): ("--help",),
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
        "own.yaml": b"training: {max_epochs: 2}\n",
        "file": b"x",
    }


@st.composite
def _command_lines(draw: st.DrawFn) -> list[str]:
    group = draw(st.sampled_from(list(GROUPS)))
    words = list(group)
    options = GROUPS[group]
    for _ in range(draw(st.integers(0, 5))):
        if options and draw(st.integers(0, 3)):
            words.append(draw(st.sampled_from(options)))
        words.append(draw(_WORDS))
    # What would be right and would take long, or start a server, is not asked for.
    return [*words, "--out", draw(st.sampled_from(("file", "file/below")))] if group[0] == "train" else words


_WORDS = st.one_of(
    st.sampled_from(VALUES),
    st.sampled_from(VALUES),
    st.sampled_from(TOKENS).map(lambda token: token.decode("utf-8", "replace")),
)


def _check(folder: Path, words: list[str]) -> None:
    (folder / "empty").mkdir()
    for name, content in files().items():
        (folder / name).write_bytes(content)
    with quiet():
        answer = kdgat(*words, folder=folder)
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


TARGETS = (Target("command-line", 80, _command_lines, _check),)
