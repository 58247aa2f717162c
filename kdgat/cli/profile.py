"""`kdgat profile`: learn what is usual of one vehicle, and a network's threshold, from minutes without attacks."""

from collections.abc import Iterable, Iterator
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdgat.base import UserError
from kdgat.cli.compilation import compilation_told
from kdgat.cli.options import RecordingOptions, spread
from kdgat.run import counted

if TYPE_CHECKING:
    from kdgat.canbus import Messages
    from kdgat.canbus.profile import Profile

app = typer.Typer(no_args_is_help=True)


@app.command("profile")
@spread
def profile(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Recordings without attacks, of any format.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The profile, a JSON file.")],
    grow: Annotated[
        Path | None, typer.Option("--grow", metavar="FILE", help="Go on with this profile; --out may be the same file.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="RUN", help="Learn the threshold of this run, or registered model, too."),
    ] = None,
    detector: Annotated[
        str | None, typer.Option("--detector", help="Of the run, as distill_gat (default: what the run decides by).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="That one alone (default: all seeds of the run).")] = None,
    alarms_per_hour: Annotated[
        float | None,
        typer.Option("--alarms-per-hour", min=1e-6, help="Of benign windows (default: evaluation.alarms_per_hour)."),
    ] = None,
    *,
    reading: RecordingOptions,
    trust: Annotated[
        bool, typer.Option("--trust", help="Take what looks like an attack for the vehicle's own: there is none.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Learn what is usual of one vehicle on one recorder, from minutes of its traffic that hold no attack.

    Who comes, how evenly, in how little time; which values move in small steps, and which bits count. A minute is
    enough, several drives are better. `kdgat detect LOG --profile FILE` uses it: single forged values, counters that
    stand still, unknown identifiers and silence from the first second on become visible.

    With --model it also holds the threshold of a run's detector on this vehicle, lower or higher than the run's own:
    `detect` then uses that detector, and `model export` needs one network, as `--detector distill_gat --seed 0`. It
    takes 1,000 windows, a minute or two, that the run was not trained on. Logs that the profile of --grow knows may be
    given again.
    """
    from kdgat.base import check_file
    from kdgat.canbus.profile import Profile, learn_profile
    from kdgat.run import OutputDirectory

    check_file(out, "--out")
    for log in logs:
        log.stat()  # that there is none is said before anything is read
        if out.exists() and out.samefile(log):
            raise UserError(f"--out {out} is the recording {log}, which it would replace: name another file")
    of_networks = {"--detector": detector, "--seed": seed, "--alarms-per-hour": alarms_per_hour}
    if model is not None:
        OutputDirectory(model).read_index()
    elif given := [name for name, value in of_networks.items() if value is not None]:
        raise UserError(f"{', '.join(given)} is of a network's threshold: give --model RUN, or leave it out")
    start, threshold = None if grow is None else Profile.read(grow), None
    with compilation_told(quiet=quiet):
        drives: Iterable[tuple[str, Messages]] = _read(logs, reading, start, trust, model is not None)
        if model is not None:
            drives = list(drives)  # for both
        learned = learn_profile(drives, start, is_trusted=trust)
        if model is not None:
            from kdgat.can.evaluation.vehicle import learn_threshold  # torch: only who makes no mistake waits for it

            threshold = learn_threshold(
                model, drives, alarms_per_hour=alarms_per_hour, detector=detector, seed=seed, is_trusted=trust
            )
            learned = threshold.added_to(learned)
    if not any(one.is_timed for one in learned.identifiers.values()):
        raise UserError(
            f"{learned.seconds:.1f} s show no identifier that comes evenly: give a minute of driving, or more"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    learned.write(out)
    if not quiet:
        for sentence in _sentences(learned):
            typer.echo(sentence)
        if threshold is not None:
            typer.echo(f"{threshold.detector} of seeds {threshold.seeds}: {threshold.sentence}")
    typer.echo(str(out))


def _read(
    logs: list[Path], reading: RecordingOptions, start: "Profile | None", trust: bool, may_be_known: bool
) -> "Iterator[tuple[str, Messages]]":
    """Read one log after the other; UserError for one that is learned already, unless it may be, or of another car."""
    from kdgat.canbus import RecordingError, read_recording
    from kdgat.canbus.look import Look
    from kdgat.canbus.profile import learn_profile

    known = set() if start is None or may_be_known else {drive.content_hash for drive in start.drives}
    for log in logs:
        messages = read_recording(log, channel=reading.channel, limits=reading.limits(), options=reading.read())
        look = Look(with_habits=False)
        list(look.watched([messages]))
        if problem := look.findings().problem(reading.read()):
            raise RecordingError(log, problem)
        if messages.num_attacks:
            raise UserError(f"{log} holds {messages.num_attacks:,} messages that are labelled as attacks: leave it out")
        content_hash = messages.content_hash()
        if content_hash in known:
            raise UserError(f"{log} was learned already: leave it out")
        known.add(content_hash)
        if start is not None and (problem := start.misfit(messages.timestamp, messages.identifier)):
            raise UserError(f"{log}: the profile, or the first log, {problem}")
        if start is None and len(logs) > 1:  # those that follow have to be of the same vehicle
            start = learn_profile([(log.name, messages)], is_trusted=trust)
        yield log.name, messages


def _sentences(learned: "Profile") -> Iterator[str]:
    """Say in words what was learned."""
    rows = learned.identifiers.values()
    num_timed, num_expected = (sum(getattr(one, name) for one in rows) for name in ("is_timed", "is_expected"))
    fields = [field for one in rows for field in one.fields]
    num_smooth = sum(field.kind == "smooth" for field in fields)
    recordings = counted(len(learned.drives), "recording")
    yield f"{recordings}, {learned.seconds:,.1f} s, {counted(len(rows), 'identifier')}"
    yield (
        f"times: {num_timed} come evenly and are judged from their first message on; {num_expected} of these are "
        "missed if they do not come at all"
    )
    num_checked = sum(one.checksum is not None for one in rows)
    yield (
        f"payloads: {counted(num_smooth, 'value')} that move in small steps, "
        f"{counted(len(fields) - num_smooth, 'counter')}, {counted(num_checked, 'checksum')}; "
        f"{counted(sum(one.always_changes for one in rows), 'identifier')} whose payload always changes"
    )
    if isinf(learned.most_others):
        yield "other identifiers are not judged as unknown: that takes a minute of driving"
    left_out = [drive for drive in learned.drives if drive.num_alarms and not drive.is_trusted]
    if left_out:
        alarms, seconds = sum(drive.num_alarms for drive in left_out), sum(drive.alarm_s for drive in left_out)
        yield (
            f"left out: {counted(alarms, 'alarm')} of {seconds:,.1f} s by its identifiers' own habits; if there was no "
            "attack, --trust takes them for the vehicle's own"
        )
