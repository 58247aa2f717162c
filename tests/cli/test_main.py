import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from typer.main import get_command

from kdgat.base import ConfigurationError
from kdgat.cli.main import (
    COMMAND_GROUPS,
    HELP_WIDTH,
    REMOVED,
    TOPICS,
    build_application,
    describe_groups,
    many_valued,
    refuse_empty_words,
    repeat_many_valued,
)
from kdgat.run.end import EXIT_STOPPED
from kdgat.stage.families import is_user_error
from tests.support.command_line import PROGRAM, Answer, run_kdgat

HEAVY = ("torch", "polars", "numba", "prefect", "plotly", "pydantic", "numpy")


@pytest.mark.processes
def test_help_names_every_group_and_imports_none_of_them() -> None:
    script = (
        "import sys\nfrom kdgat.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('imported:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "imported: []" in done.stdout
    assert all(f"\n  {name} " in done.stdout for name in COMMAND_GROUPS if name != "stage")  # which jobs run


def test_help_breaks_no_word_in_a_terminal_of_eighty_columns() -> None:
    lines = describe_groups().splitlines()
    assert max(map(len, lines)) <= HELP_WIDTH == 80
    words = " ".join(lines).split()
    shown = [group for name, group in COMMAND_GROUPS.items() if name != "stage"]
    assert all(word in words for group in shown for word in group.help.split())


@pytest.mark.parametrize("example", [example for example, _ in TOPICS.values()])
def test_the_examples_of_the_help_are_commands_with_options_that_they_have(
    example: str, kdgat: Callable[..., Answer]
) -> None:
    _, *words = example.split()
    command = [word for word in words if word in COMMAND_GROUPS or word in ("trees", "solve", "list")]
    printed = kdgat(*command, "--help", status=0).stdout
    assert all(word in printed for word in words if word.startswith("--"))


def test_help_may_be_asked_for_in_short_and_as_a_command(kdgat: Callable[..., Answer]) -> None:
    for words in (("-h",), ("help",)):
        assert kdgat(*words, status=0).stdout == describe_groups() + "\n"
    assert kdgat("help", "report", status=0).stdout == kdgat("report", "--help", status=0).stdout
    for line in ("report", "train", "train can", "runs show", "lap", "doctor gpu", "data import", "stage run"):
        assert kdgat(*line.split(), "-h", status=0).stdout == kdgat(*line.split(), "--help", status=0).stdout, line


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("train can", "Missing arguments '--out', '--dataset', '--data-root'."),
        ("sweep can --dataset x", "Missing arguments '--out', '--data-root'."),
        ("train can --config file.yaml", "Missing option '--out'."),
        ("night --config file.yaml", "Missing argument 'DATASET'."),
        ("model export", "Missing arguments 'RUN', '--out'."),
        ("lap merge", "Missing arguments 'FILE', '--out'."),
        ("data import x", "--dataset, --scenario: required"),
        ("data import x --scenario test_01", "--dataset: required"),
    ],
)
def test_all_that_is_missing_is_named_at_once(line: str, missing: str, kdgat: Callable[..., Answer]) -> None:
    assert missing in kdgat(*line.split(), status=2).stderr


@pytest.mark.parametrize("group", [name for name in COMMAND_GROUPS])
def test_every_group_has_help(group: str, kdgat: Callable[..., Answer]) -> None:
    assert "usage" in kdgat(group, "--help", status=0).stdout.lower()


def test_a_command_that_has_been_removed_says_what_has_taken_its_place(kdgat: Callable[..., Answer]) -> None:
    for word, place in REMOVED.items():
        name = word.removeprefix("kdgat ")
        assert name not in COMMAND_GROUPS
        words = ("detect", "x", f"{word}=y") if word.startswith("--") else (name, "--follow", "x")
        assert kdgat(*words, status=2).stderr == f"error: `{word}` has been removed: {place}\n"


def test_its_version_names_what_a_report_of_a_bug_needs(kdgat: Callable[..., Answer]) -> None:
    text = kdgat("--version", status=0).stdout
    assert text.startswith(f"kdgat {metadata.version('kdgat')}, ")
    assert f"torch {metadata.version('torch')}" in text


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kdgat mod", "model"),
        ("kdgat train ", "trees"),
        ("kdgat train can --pre", "--preset"),
        ("kdgat site s", "show"),
    ],
)
def test_a_shell_completes_commands_families_and_options(line: str, expected: str) -> None:
    environment = {**os.environ, "_KDGAT_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=False)
    assert expected in done.stdout.split(), done.stderr


@pytest.mark.processes
def test_options_that_a_person_has_set_for_python_are_none_of_the_command() -> None:
    code = "import sys, kdgat.cli.main as it; it._run = lambda _: print(sys.flags.inspect, sys.warnoptions) or 3"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}; it.main()"],
        env={**os.environ, "PYTHONWARNINGS": "error", "PYTHONINSPECT": "1", "PYTHONVERBOSE": "1"},
        input="print('typed')",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "0 []\n")


def test_the_script_for_a_shell_is_printed(kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_KDGAT_COMPLETE=complete_bash" in kdgat("--show-completion", "bash", status=0).stdout


@pytest.mark.processes
def test_a_user_mistake_is_one_line_and_a_traceback_with_debug(kdgat: Callable[..., Answer]) -> None:
    words = ("plan", "can", "-O", "training.max_epoch=2")
    done = run_kdgat(*words)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "max_epochs" in done.stderr
    with pytest.raises(ConfigurationError, match="max_epochs"):
        kdgat(*words, "--debug")


MISTAKES = (
    "data inspect absent",
    "config show can --config absent",
    "plan can --config absent",
    "estimate can --config absent",
    "train can --config absent --out out",
    "night can --config absent",
    "new absent",
    "check absent.py",
    "sweep lap --out out",
    "lap inspect absent",
    "runs usage absent",
    "site show absent",
    "image inspect absent",
    "evaluate can --run absent --data-root absent",
    "detect absent",
    "model export absent --out out",
    "profile absent --out out",
    "model list --registry absent",
    "runs show absent",
    "report absent",
)


def test_every_command_ends_with_1_after_a_mistake_and_with_2_where_words_cannot_be_parsed(
    kdgat: Callable[..., Answer], tmp_path: Path
) -> None:
    """Beside it: `stage run` has statuses of its own, and `doctor` asks the machine."""
    assert {line.split()[0] for line in MISTAKES} == set(COMMAND_GROUPS) - {"stage", "doctor"}
    for line in MISTAKES:
        answer = kdgat(*line.split(), status=1, folder=tmp_path)
        assert answer.stderr.startswith("error: "), line
        assert answer.stderr.count("\n") == 1, line
        unparsed = kdgat(*line.split(), "--no-such-option", status=2, folder=tmp_path).stderr
        assert "No such option: --no-such-option" in unparsed, line


@pytest.mark.parametrize(("name", "shown"), [("\n", "\\n"), ("\u2028", "\\u2028"), ("\x1b[2J", "\\x1b[2J")])
def test_a_name_of_a_file_that_a_terminal_would_obey_is_shown_and_not_obeyed(
    kdgat: Callable[..., Answer], name: str, shown: str
) -> None:
    assert kdgat("data", "list", "--catalog", name, status=1).stderr.startswith(
        f"error: {shown}: catalog file not found"
    )


@pytest.mark.processes
@pytest.mark.parametrize("command", ["--help", "site list"])
def test_output_that_finds_no_room_or_no_reader_is_one_line_at_most(command: str) -> None:
    """Shells are asked, because what fails is the writing at the end of a process."""
    shell = f"{{ {' '.join([*PROGRAM, command])}; echo status $? >&2; }}"
    full, cut, closed = (
        subprocess.run(["bash", "-c", shell + to], capture_output=True, text=True, check=True).stderr
        for to in (" >/dev/full", " | head -1", " >&-")
    )
    said, status = full.splitlines()
    assert said.startswith("error: No space left on device: free some")
    assert status == "status 1"
    assert cut == closed == "status 0\n"


def test_ctrl_c_before_anything_runs_is_one_word(kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kdgat.cli.main.build_application", interrupted)
    assert kdgat("plan", "lap", status=EXIT_STOPPED).stderr == "stopped\n"


def test_ctrl_c_in_a_command_is_one_word(
    kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kdgat.lap.instances.store.write_store", interrupted)
    answer = kdgat("lap", "generate", "--out", str(tmp_path / "a.h5"), "--quiet", status=EXIT_STOPPED)
    assert answer.stderr == "stopped\n"


def test_a_bug_keeps_its_traceback() -> None:
    assert is_user_error(ConfigurationError("key, value, fix"))
    assert is_user_error(FileNotFoundError(2, "No such file", "run.json"))
    assert not is_user_error(ValueError("shapes do not match"))
    assert not is_user_error(KeyError("missing"))


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("--seeds 0 1 2 --quiet", "--seeds 0 --seeds 1 --seeds 2 --quiet"),
        ("--hold-out kia soul -O a=1", "--hold-out kia --hold-out soul -O a=1"),
        ("--seeds 0 --seeds 1", "--seeds 0 --seeds 1"),
        ("--seeds -1 2", "--seeds -1 --seeds 2"),
        ("--seeds --quiet", "--seeds --quiet"),
        ("plan can --preset quick", "plan can --preset quick"),
    ],
)
def test_options_with_many_values_are_repeated_for_the_parser(typed: str, parsed: str) -> None:
    command = get_command(build_application("train", ["train", "can"]))
    assert repeat_many_valued(typed.split(), many_valued(command)) == parsed.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "lap", "--out", ""), "--out is empty: name what is meant, or leave the option out"),
        (("train", "lap", "--out="), "--out is empty: name what is meant, or leave the option out"),
        (("night", "cars", "--inbox", "", "--quiet"), "--inbox is empty: name what is meant, or leave the option out"),
        (
            ("evaluate", "can", "--run", "", "--data-root", "x"),
            "--run is empty: name what is meant, or leave the option out",
        ),
        (("evaluate", "can", "--json", ""), "--json is empty: name what is meant, or leave the option out"),
        (
            ("data", "import", "x.log", "--dataset", ""),
            "--dataset is empty: name what is meant, or leave the option out",
        ),
        (("report", ""), "the word after 'report' is empty: name what is meant, or leave it out"),
    ],
)
def test_an_empty_word_is_refused_and_means_no_current_folder(
    kdgat: Callable[..., Answer], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    answer = kdgat(*words, folder=tmp_path, status=1)
    assert answer.stderr == f"error: {said}\n"
    assert not any(tmp_path.iterdir())


def test_an_override_may_end_in_an_equals_sign() -> None:
    refuse_empty_words(["train", "lap", "-O", "training.x=", "--override", "training.x=", "--override=training.x="])
