"""`kdgat`: find the command group, import only that group, turn user mistakes into one line."""

import errno
import importlib
import os
import platform
import sys
import textwrap
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kdgat.base import UserError, say
from kdgat.base.cores import wait_without_spinning
from kdgat.base.environment import PYTHON_OPTIONS, of_children
from kdgat.base.place import describe_os_error
from kdgat.run.end import EXIT_STOPPED
from kdgat.stage import garbage_kept
from kdgat.stage.families import EXPERIMENT, is_source, is_user_error
from kdgat.stage.process import keep_garbage_at_exit

if TYPE_CHECKING:
    import typer

    from kdgat.family import Family

DEBUG_OPTION = "--debug"
# What a shell sets to ask for completions, and where it puts the line so far: bash, and the other shells.
COMPLETION_VARIABLE, LINE_VARIABLES = "_KDGAT_COMPLETE", ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
HELP_WIDTH = 80  # of the narrowest terminal that people use
EXIT_USER_ERROR = 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, a quota, a limit: Python names no file when writing fails
EXIT_USAGE = 2
# Libraries that read files and variables of a person as they are imported -> where those are.
SETTINGS = {
    "prefect.settings": "PREFECT_* in the environment, ~/.prefect/profiles.toml, prefect.toml and .env of this folder",
    "dask.config": "DASK_* in the environment, YAML files in $DASK_CONFIG, ~/.config/dask, /etc/dask",
}
HELP = "Keep graph neural networks trained. Add --debug to any command for a traceback."


@dataclass(frozen=True)
class CommandGroup:
    """Where a command group lives, so that `kdgat --help` imports none of them."""

    module: str
    help: str


COMMAND_GROUPS: dict[str, CommandGroup] = {
    "data": CommandGroup("kdgat.cli.data", "List, inspect, import and synthesise recordings."),
    "config": CommandGroup("kdgat.cli.config", "Show the configuration of a run, and where each value comes from."),
    "plan": CommandGroup("kdgat.cli.plan", "Print the stages a training run consists of, without running them."),
    "estimate": CommandGroup("kdgat.cli.estimate", "Estimate walltime and memory of jobs, and say why."),
    "train": CommandGroup("kdgat.cli.train", "Train, calibrate and evaluate a family of models end to end."),
    "new": CommandGroup("kdgat.cli.new", "Write a file to begin a model of your own with."),
    "check": CommandGroup("kdgat.cli.check", "Prove that your own model resumes with the same weights."),
    "night": CommandGroup("kdgat.cli.night", "Retrain on new recordings; a better model goes into service."),
    "sweep": CommandGroup("kdgat.cli.sweep", "Try configurations, and say which validates best."),
    "lap": CommandGroup("kdgat.cli.lap", "Generate, bucket, inspect and solve assignment problems."),
    "site": CommandGroup("kdgat.cli.site", "List clusters that stages can run on, and show what is known of one."),
    "image": CommandGroup("kdgat.cli.image", "Make container images, look into them, and run things in them."),
    "stage": CommandGroup("kdgat.cli.stage", "Run one stage from its run directory, as a cluster job does."),
    "evaluate": CommandGroup("kdgat.cli.evaluate", "Measure what a finished run has trained on other data."),
    "detect": CommandGroup("kdgat.cli.detect", "Find attacks in a log, in a file that grows, or on a bus."),
    "profile": CommandGroup(
        "kdgat.cli.profile", "Learn what is usual of one vehicle, from minutes of it without attacks."
    ),
    "doctor": CommandGroup("kdgat.cli.doctor", "Check this machine and its GPU, and print how to get missing parts."),
    "model": CommandGroup("kdgat.cli.model", "List trained models, say which is in service, export one as a file."),
    "runs": CommandGroup("kdgat.cli.runs", "List, show and compare runs: which validated best, what they used."),
    "report": CommandGroup("kdgat.cli.report", "Write the HTML report of a run."),
}

# What people want -> a command that does it, and the commands for it. `stage` is what jobs run.
TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Train": (
        "kdgat train trees --out runs/trees",
        ("plan", "estimate", "train", "sweep", "config", "runs", "report"),
    ),
    "Train a model of your own": ("kdgat check net.py", ("new", "check", "evaluate")),
    "Watch a CAN bus": ("kdgat detect drive.log", ("data", "detect", "profile", "evaluate")),
    "Solve assignment problems": ("kdgat lap solve costs.npy", ("lap",)),
    "Keep models trained": ("kdgat night my_cars --inbox inbox", ("night", "model")),
    "Use a cluster": ("kdgat site list", ("site", "image")),
    "Know this machine": ("kdgat doctor", ("doctor",)),
}

OF_FAMILIES = ("train", "plan", "estimate", "sweep")  # commands that take a family, or a file that declares a model

# Commands and options of the release before, with what has taken their place.
REMOVED = {
    "kdgat calibrate": "use `kdgat profile LOG... --out FILE --model RUN`, whose FILE `--profile` takes",
    "--calibration": "use `--profile FILE`, of `kdgat profile LOG... --out FILE --model RUN`",
    "kdgat capabilities": "use `kdgat doctor`, which shows the same",
    "kdgat export": "use `kdgat model export RUN --out FILE`, with the same options",
    "kdgat gpu": "use `kdgat doctor gpu`, with the options of `kdgat gpu check`",
    "kdgat history": "use `kdgat runs usage`, with the same options",
    "kdgat run": "use `prefect deployment run NAME --watch`, after `. installation.env` as `make deploy` prints it",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status, by one rule for all commands.

    0 done; 1 refused by one `error:` line, failed, or found wrong; 2 the command line cannot be parsed; 3 alarms; 130
    stopped. `kdgat stage run` has 69 and 75 besides.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG_OPTION in tokens
    tokens = [word for word in tokens if word != DEBUG_OPTION]
    if arguments is None:
        if any(map(os.environ.get, PYTHON_OPTIONS)):  # in force in this Python, which begins again without
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], of_children(os.environ))
        # For what libraries start: modules of the folder where one stands are not theirs.
        os.environ["PYTHONSAFEPATH"] = "1"
    wait_without_spinning()
    keep_garbage_at_exit()
    if sys.stdout is None:  # closed by whoever started this, which is no reason to fail
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        status = _run(tokens)
        _print(end="")
        _tell_of_overdue_nights()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = EXIT_STOPPED
    except ModuleNotFoundError as error:
        missing = None if debug or error.name is None else _describe_missing(error.name)
        if missing is None:
            raise
        _print_error(missing)
        status = EXIT_USER_ERROR
    except (ValueError, OSError) as error:
        if not debug and (described := _describe_settings(error)):
            _print_error(described)
        elif isinstance(error, OSError) and error.errno in FULL and error.filename is None and not debug:
            _forget_output()
            _print_error(f"{error.strerror}: free some where this command prints or writes to, or choose another place")
        elif debug or not is_user_error(error):
            raise
        else:
            _print_error(describe_os_error(error) if isinstance(error, OSError) else str(error))
        status = EXIT_USER_ERROR
    sys.exit(status)


def _tell_of_overdue_nights() -> None:
    """Tell whoever sits at a terminal of nights that do not come: those whom a server tells may hear nothing of one."""
    if not sys.stderr.isatty() or COMPLETION_VARIABLE in os.environ:
        return
    from flows.deployment.overdue import find_overdue, home_of

    for sentence in find_overdue(home_of()):
        say(f"note: {sentence}; `make deployed` says whether server and worker run")


def build_application(wanted: str | None, tokens: Sequence[str] = ()) -> "typer.Typer":
    """Mount the wanted group for real and the others by name and help alone; `tokens` are the command line."""
    import typer  # here, because `kdgat stage run` and `kdgat --help` start without the time that it takes

    from kdgat.cli.options import name_all_missing

    application = typer.Typer(
        name="kdgat",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    for name, group in COMMAND_GROUPS.items():
        if name != wanted:
            application.add_typer(_placeholder(), name=name, help=group.help)
            continue
        module = importlib.import_module(group.module)
        own: typer.Typer | None = getattr(module, "app", None)  # not of groups with a command per family
        if own is not None and len(own.registered_commands + own.registered_groups) == 1:  # it has the group's name
            application.add_typer(own)
        else:
            application.add_typer(own or _family_group(name, module, tokens), name=name, help=group.help)
        name_all_missing(application)
    return application


def _run(tokens: list[str]) -> int:
    if COMPLETION_VARIABLE in os.environ:
        line = next((os.environ[name] for name in LINE_VARIABLES if name in os.environ), "")
        words = line.split()[1:]
        build_application(_wanted(words), words)(prog_name="kdgat")
    refuse_empty_words(tokens)
    tokens = with_source(tokens)
    if tokens[:1] == ["help"]:
        tokens = [*tokens[1:], "--help"]
    wanted = _wanted(tokens)
    if tokens == ["--version"]:
        _print(describe_version())
        return 0
    if wanted is None and set(tokens) <= {"--help", "-h"}:
        _print(describe_groups())
        return 0 if tokens else EXIT_USAGE
    for word in (f"kdgat {wanted}", *(word.partition("=")[0] for word in tokens if word.startswith("--"))):
        if word in REMOVED:
            _print_error(f"`{word}` has been removed: {REMOVED[word]}")
            return EXIT_USAGE
    if wanted == "stage":  # argparse, because jobs start without the time that typer and rich take
        from kdgat.cli import stage

        return stage.run(tokens[tokens.index("stage") + 1 :])
    with garbage_kept():
        from typer.main import get_command

        command = get_command(build_application(wanted, tokens))
    try:
        command(repeat_many_valued(tokens, many_valued(command)), prog_name="kdgat", obj=tuple(tokens))
    except SystemExit as stop:
        if isinstance(getattr(stop.__context__, "__cause__", None), KeyboardInterrupt):  # typer says nothing of it
            raise KeyboardInterrupt from stop
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def with_source(words: Sequence[str]) -> list[str]:
    """Rewrite `train FILE ...` as `train experiment --source FILE ...`, which is how a family takes it.

    >>> with_source(["train", "net.py", "--out", "runs/net"])
    ['train', 'experiment', '--source', 'net.py', '--out', 'runs/net']
    >>> with_source(["stage", "run", "a.py"])
    ['stage', 'run', 'a.py']
    """
    place = 2 if list(words[:2]) == ["config", "show"] else 1
    if len(words) > place and words[0] in (*OF_FAMILIES, "config") and is_source(words[place]):
        return [*words[:place], EXPERIMENT, "--source", *words[place:]]
    return list(words)


def _describe_settings(error: BaseException) -> str | None:
    """Say that a library refuses what a person has set for it, which it reads when it is imported; else None."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for module, places in SETTINGS.items():
        if any(name == module or name.startswith(f"{module}.") for name in modules):
            return f"{module.partition('.')[0]} cannot read its settings ({places}): {' '.join(str(error).split())}"
    return None


def _describe_missing(module: str) -> str | None:
    """Say which extra brings a module that could not be imported; None if the module is a fault of kdgat's own."""
    try:
        from kdgat.cli.extras import describe_missing
    except ModuleNotFoundError:  # not even what reads the list of what kdgat asks for
        return f"{module.partition('.')[0]} is not installed, and kdgat needs it: pip install kdgat"
    return describe_missing(module)


def _wanted(tokens: Sequence[str]) -> str | None:
    """Return the command group that a command line names."""
    return next((word for word in tokens if not word.startswith("-")), None)


def describe_groups() -> str:
    """Return what `kdgat --help` prints: made here, because a library for command lines takes longer to import."""
    width = max(map(len, COMMAND_GROUPS)) + 4
    lines = []
    for topic, (example, names) in TOPICS.items():
        lines += ["", f"{topic}:".ljust(HELP_WIDTH - len(example)) + example]
        for name in names:
            # Between words: a terminal would break a line in the middle of one, and begin the rest at its left edge.
            first, *rest = textwrap.wrap(COMMAND_GROUPS[name].help, HELP_WIDTH - width)
            lines += [f"  {name}".ljust(width) + first, *(" " * width + line for line in rest)]
    return "\n".join(
        [
            "Usage: kdgat COMMAND [ARGUMENTS]",
            "",
            *textwrap.wrap(HELP, HELP_WIDTH, initial_indent="  ", subsequent_indent="  "),
            *lines,
            "",
            "kdgat COMMAND --help says more; kdgat --version;",
            "kdgat --install-completion for your shell.",
        ]
    )


def describe_version() -> str:
    """Return what `kdgat --version` prints: what a report of a bug needs first."""
    from kdgat.stage import package_version
    from kdgat.stage.provenance import git_state

    found = [f"kdgat {package_version('kdgat')}"]
    if git := git_state(Path(__file__).parent):
        found.append(f"revision {str(git.get('revision'))[:12]}{' with changes' if git.get('dirty') else ''}")
    found.append(f"Python {platform.python_version()}")
    found += [f"{name} {package_version(name) or 'not installed'}" for name in ("torch", "prefect")]
    return ", ".join(found)


def _family_group(name: str, module: ModuleType, words: Sequence[str]) -> "typer.Typer":
    """Return a group with one command per family, or with a group of those below it."""
    from kdgat.cli import options

    families = _families_named(words)
    if make := getattr(module, f"{name}_command", None):
        return options.family_commands(families, make)
    group: typer.Typer = module.application(families)
    return group


def _families_named(words: Sequence[str]) -> "dict[str, Family]":
    """Import the family that a command line names, or all of them where it names none."""
    from kdgat.family import find_family
    from kdgat.stage.families import family_names

    names = family_names()
    named = set([word for word in words if not word.startswith("-")][1:3]) & set(names)
    return {name: find_family(name) for name in names if name in named or not named}


def many_valued(command: Any) -> set[str]:
    """Return the options, of a command and those below it, that take every word up to the next, as `--seeds 0 1 2`.

    Options with a letter, and those that are written KEY=VALUE, are repeated instead.
    """
    repeatable = [one for one in command.params if getattr(one, "multiple", False) and one.metavar != "KEY=VALUE"]
    found = {one.opts[0] for one in repeatable if all(name.startswith("--") for name in one.opts)}
    return found.union(*(many_valued(below) for below in getattr(command, "commands", {}).values()))


def repeat_many_valued(tokens: Sequence[str], many_valued: Collection[str]) -> list[str]:
    """Rewrite `--seeds 0 1 2` as `--seeds 0 --seeds 1 --seeds 2`, which is the form that the parser knows."""
    rewritten: list[str] = []
    option: str | None = None
    for word in tokens:
        is_value = not word.startswith("-") or word[1:].isdigit()
        if is_value and option is not None and rewritten[-1] != option:
            rewritten.append(option)
        if not is_value:
            option = word if word in many_valued else None
        rewritten.append(word)
    return rewritten


def refuse_empty_words(tokens: Sequence[str]) -> None:
    """Refuse empty words: mostly variables of a script that are not set, and as paths they mean the current folder."""
    for before, word in zip(("", *tokens), tokens, strict=False):
        option, is_joined, value = word.partition("=")
        if is_joined and not value and option.startswith("--"):
            before, word = option, ""
        if word:
            continue
        if before.startswith("--") and before != "--":
            raise UserError(f"{before} is empty: name what is meant, or leave the option out")
        raise UserError(f"the word after {before or 'kdgat'!r} is empty: name what is meant, or leave it out")


def _placeholder() -> "typer.Typer":
    import typer

    group = typer.Typer()

    @group.callback()
    def named_only() -> None:
        """Stand for a group whose module is not imported."""

    return group


def _print(text: str = "", end: str = "\n") -> None:
    """Print what a command says last; `| head` that has read enough is no failure."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    """Drop what could not be printed: at its end Python would try, and fail, once more."""
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


def _print_error(text: str) -> None:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    label = "\x1b[31merror:\x1b[0m" if colour else "error:"
    say(f"{label} {readable(text)}")


def readable(text: str) -> str:
    """Write what no terminal shows, or obeys, as Python writes it: names of files may hold any character.

    >>> readable("a\\x1b[2J: is no file")
    'a\\\\x1b[2J: is no file'
    """
    body = text.lstrip("\n")
    shown = "\\n" * (len(text) - len(body)) + body
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode("ascii") for one in shown
    )


if __name__ == "__main__":
    main()
