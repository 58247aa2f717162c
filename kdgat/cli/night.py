"""`kdgat night DATASET`: one night of retraining in this terminal, as the deployment's schedule runs it."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kdgat.base import UserError, say
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, JobOptions, spread
from kdgat.stage import garbage_kept

if TYPE_CHECKING:
    from rich.console import Console

    from flows.deployment.installation import Installation
    from kdgat.can.config import CanConfig
    from kdgat.family.night import NightlyDirectory
    from kdgat.registry import PromotionRule
    from kdgat.run import RunEnd

app = typer.Typer()

FLOW_LOGGER = "prefect.flow_runs"
DEFAULT = "(default: $KDGAT_HOME/{})."

DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="Name in the catalog, or of a folder of the data.")]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help=f"Folder that holds the dataset's folder {DEFAULT.format('data')}"),
]
RegistryPath = Annotated[
    Path | None,
    typer.Option("--registry", metavar="DIR", help=f"Registry of models {DEFAULT.format('registry')}"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Runs, reports and what is known (default: nightly/DATASET in $KDGAT_HOME/outputs)."),
]
Inbox = Annotated[
    Path | None,
    typer.Option(
        "--inbox", help=f"Folder of new recordings; one that is named must be there {DEFAULT.format('inbox/DATASET')}"
    ),
]
HoldOut = Annotated[
    list[str] | None, typer.Option("--hold-out", help="Vehicle or word in recording names: tested on, never trained.")
]
Start = Annotated[
    Literal["current", "scratch"],
    typer.Option("--start-from", help="current: train on from the weights in service; scratch: anew."),
]
Retrain = Annotated[
    Literal["new", "always"],
    typer.Option("--retrain", help="new: if recordings or configuration have changed; always: also if nothing has."),
]
Rule = Annotated[
    list[str] | None,
    typer.Option("--promotion", metavar="KEY=VALUE", help="One key of the rule, as in --promotion accept=not_worse."),
]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="Of `kdgat profile`: models are compared as `detect` judges by it."),
]
KeepRuns = Annotated[int, typer.Option("--keep-runs", min=1, help="Run directories of registered models that stay.")]
Settle = Annotated[
    float, typer.Option("--settle-s", min=0.0, help="A file that changed less than so many seconds ago waits.")
]


@app.command()
@spread
def night(
    dataset: DatasetName,
    data_root: DataRoot = None,
    inbox: Inbox = None,
    registry: RegistryPath = None,
    out: Out = None,
    catalog: options.Catalog = None,
    hold_out: HoldOut = None,
    start_from: Start = "current",
    retrain: Retrain = "new",
    promotion: Rule = None,
    profile: Profile = None,
    keep_runs: KeepRuns = 3,
    settle_s: Settle = 60.0,
    *,
    configured: ConfigOptions,
    where: JobOptions,
    quiet: options.Quiet = False,
) -> None:
    """Retrain a CAN detector on new recordings, and put the new model into service if it is better.

    Without paths it is the night of `make deploy`, run now: KDGAT_HOME is ~/.kdgat unless that variable is set, and
    paths that `make deploy` was given count. The exit status is 0 also with nothing new, 1 after a failure or where
    every new file was refused, 130 if it was stopped: the next night then goes on from there.
    """
    from kdgat.can.family import FAMILY
    from kdgat.can.inputs import refuse_within_dataset
    from kdgat.can.nightly.new_recordings import require_recordings
    from kdgat.cli.flow_run import check_gpus, check_place

    site, request = where.read()
    given: dict[str, Any] = {"dataset": dataset, "data_root": data_root or _installation().data_root}
    given |= {name: value for name, value in (("catalog", catalog), ("hold_out", hold_out)) if value}
    # Mistakes come to light before a server is started.
    config: CanConfig = configured.build(FAMILY, given)  # type: ignore[assignment]
    rule = read_rule(promotion or ())
    if inbox is not None and not inbox.is_dir():  # a misspelt one would be made, and every night find nothing in it
        raise UserError(f"--inbox {inbox}: no such folder: correct it, or make it by `mkdir -p {inbox}`")
    inbox = (inbox or _installation().inbox / dataset).absolute()
    require_recordings(config.data, inbox)
    if out is not None:
        refuse_within_dataset(config.data, out)
    from kdgat.can.nightly.run import night_config  # torch: only who makes no mistake waits for it
    from kdgat.family.night import NightlyDirectory

    profile = None if profile is None else profile.absolute()
    config = night_config(config, profile)
    planned = FAMILY.plan(config)
    directory = NightlyDirectory(out or _installation().outputs / "nightly" / dataset)
    output = check_place(directory.path, site)
    check_gpus(planned, site, request)
    directory.require_free()
    parameters = {
        "config": config,
        "registry": (registry or _installation().registry).absolute(),
        "inbox": inbox,
        "start_from": start_from,
        "retrain": retrain,
        "promotion": rule,
        "profile": profile,
        "keep_runs": keep_runs,
        "settle_s": settle_s,
        "command_line": request,
    }

    def run(console: "Console") -> "RunEnd":
        with garbage_kept():
            from flows.nightly import nightly  # Prefect: only who trains waits for it
            from flows.stages import run_flow

        with _flow_log(console, quiet=quiet):  # not earlier: importing Prefect sets up its loggers
            return run_flow(nightly, output, site, **parameters)

    raise typer.Exit(_watch(directory, run, quiet=quiet))


def _installation() -> "Installation":
    """Return where `make deploy` keeps what, for what the command line leaves out."""
    from flows.deployment.installation import Installation

    return Installation.find()


def read_rule(words: Sequence[str]) -> "PromotionRule":
    """Read a rule from words as `margin=0.001`; ConfigurationError names key, value and fix."""
    from kdgat.base import ConfigurationError, validate_config
    from kdgat.base.configuration import read_yaml
    from kdgat.registry import PromotionRule

    content: dict[str, Any] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise ConfigurationError(f"--promotion {word}: write KEY=VALUE, as in --promotion accept=not_worse")
        content[key.strip()] = read_yaml(value)
    try:
        return validate_config(PromotionRule, content)
    except ConfigurationError as error:
        raise ConfigurationError(f"--promotion: {str(error).removeprefix(f'{PromotionRule.__name__}: ')}") from error


def _watch(directory: "NightlyDirectory", run: "Callable[[Console], RunEnd]", *, quiet: bool) -> int:
    """Run the flow, show how its training goes, and print how it ended; return the exit status."""
    from kdgat.cli.flow_run import EXIT_FAILED, watch_flow
    from kdgat.run.end import EXIT_STOPPED

    started = time.time()
    end = watch_flow(
        directory.latest_run,
        run,
        again="the next night",
        afterwards="the new model is trained: comparing it",
        quiet=quiet,
    )
    if end is None:
        return EXIT_STOPPED
    if end.state != "completed":
        stopped = end.state == "stopped"
        say(end.message if stopped else f"error: {end.message}")
    else:
        say(end.message, sys.stdout)
    report = directory.latest_report()
    if report is not None and report.stat().st_mtime >= started - 1.0:
        print(f"report   {report}")
    return {"completed": 0, "stopped": EXIT_STOPPED}.get(end.state, EXIT_FAILED)


@contextmanager
def _flow_log(console: "Console", *, quiet: bool) -> Iterator[None]:
    """Print what the night itself logs; of what its training logs, the display shows what matters."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if Path(record.pathname).parent.name == "night":  # flows/night, and not the engine that runs it
                text = f"{time.strftime('%H:%M:%S')} {record.getMessage()}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    lines, logger = Lines(logging.INFO), logging.getLogger(FLOW_LOGGER)
    if not quiet:
        logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)
