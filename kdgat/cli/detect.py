"""`kdgat detect`: alarms in a log, in a file that grows, or on a bus."""

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from kdgat.base import UserError, say
from kdgat.cli import options
from kdgat.cli.compilation import Compilation, compilation_told
from kdgat.cli.options import LabelledRecordingOptions, RecordingOptions, spread
from kdgat.run import counted

if TYPE_CHECKING:
    from kdgat.can.detection.watch import Summary
    from kdgat.canbus import Messages
    from kdgat.canbus.look import Look
    from kdgat.canbus.profile import Profile
    from kdgat.canbus.stream import MessageStream, StreamStatus

EXIT_ALARMS = 3
MOST_PARTS = 10_000  # of messages, after which it is seen at the latest whether a profile is of their vehicle
FEWEST_LIVE = 1000  # messages of a log that grows, before it is refused for what it shows
EXIT_INTERRUPTED = 130  # as of a program that SIGINT ends
INTERFACE_PACKAGE = "onnxruntime"

app = typer.Typer()


@app.command("detect")
@spread
def detect(
    log: Annotated[
        Path | None,
        typer.Argument(metavar="LOG", help="A log of any format that kdgat reads; or -, a pipe."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Output directory of a training, an exported file, or the id of a registered model."
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            help="An attention network of the run (default: distill_gat, if it has it), ensemble, or habits.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="That one of the run alone (default: the first of distill_gat).")
    ] = None,
    registry: options.IdRegistry = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Of `kdgat profile`, for this vehicle.")
    ] = None,
    dbc: Annotated[
        Path | None,
        typer.Option("--dbc", metavar="FILE", help="Names of messages and signals, as DBC."),
    ] = None,
    follow: Annotated[
        Path | None,
        typer.Option("--follow", metavar="FILE", help="Read a log that is being written, until Ctrl-C or SIGTERM."),
    ] = None,
    bus: Annotated[
        str | None,
        typer.Option("-i", metavar="CHANNEL", help="Read a bus by python-can, until Ctrl-C or SIGTERM, as can0."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option("-c", metavar="INTERFACE", help="Of python-can, as socketcan.")
    ] = None,
    *,
    reading: LabelledRecordingOptions,
    merge_s: Annotated[
        float, typer.Option("--merge", metavar="SECONDS", min=0.0, help="Alarms that are no further apart are one.")
    ] = 1.0,
    alarm_format: Annotated[Literal["table", "json", "csv"], typer.Option("--format", help="Of the alarms.")] = "table",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write alarms here; of --follow and -i, after what is there."),
    ] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE.html", help="Draw a timeline.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary, only alarms.")] = False,
) -> None:
    """Find attacks in CAN traffic: when, how sure, which identifiers and why, and a guess of the kind.

    A window is an alarm if the network's probability reaches the threshold, or if the habits of identifiers say so.
    Windows no more than a second apart are one alarm. Without --model the habits decide alone.
    Exit status: 0 no alarm, 3 alarms, 1 a mistake, or nothing could be judged, 2 a command line that cannot be parsed,
    130 stopped before the end of a log. With --follow or -i each
    alarm is written as it ends, and standard error says when one begins; Ctrl-C and SIGTERM end the alarm that goes on,
    write it, and give that status. So is it with a LOG that is a pipe, as `candump -L can0 | kdgat detect -`, which
    ends with the pipe, too.
    """
    sources = [name for name, given in (("LOG", log), ("--follow", follow), ("-i", bus)) if given is not None]
    if len(sources) != 1:
        named = " and ".join(sources) if sources else "nothing"
        raise UserError(f"{named} given to look at: give one of LOG, --follow FILE, and -i CHANNEL -c INTERFACE")
    if (bus is None) != (interface is None):
        raise UserError("-i CHANNEL and -c INTERFACE belong together: give both, as in -i can0 -c socketcan")
    _refuse_unused(reading, follow, bus)
    if registry is not None and model is None:
        raise UserError("--registry is where --model is looked up: give --model ID, or leave it out")
    require_runtime("detect")
    from kdgat.base import check_file
    from kdgat.can.detection.alarms import Alarm
    from kdgat.can.detection.loading import load_detector
    from kdgat.can.detection.output import AlarmWriter
    from kdgat.can.detection.picture import MAX_DRAWN, check_picture, draw_timeline
    from kdgat.can.detection.watch import Timeline, Watch
    from kdgat.canbus.look import Look
    from kdgat.canbus.pipes import is_pipe
    from kdgat.canbus.profile import Database, Profile
    from kdgat.registry import find_model

    if out is not None:
        check_file(out, "--out")
    if picture is not None:
        check_picture(picture)
        check_file(picture, "--picture")
    learned = None if profile is None else Profile.read(profile)
    chosen = load_detector(None if model is None else find_model(model, registry), detector, seed, learned)
    if learned is not None and not chosen.detector.rule.habits:
        raise UserError(f"--profile {profile} is for the habits of identifiers, which this model does not ask")
    is_live = log is None or is_pipe(log)
    timeline = Timeline() if picture is not None else None

    def on_begin(time_s: float) -> None:
        if is_live and not quiet:  # by the clock of the table
            print(f"alarm begins {time_s - watch.summary.first_s:.3f} s since start", file=sys.stderr, flush=True)

    known = None if learned is None else learned.known()
    database = None if dbc is None else Database.read(dbc)
    watch = Watch(chosen, timeline=timeline, on_begin=on_begin, merge_s=merge_s, known=known, database=database)
    alarms, num_alarms = list[Alarm](), 0
    with (
        compilation_told(quiet=quiet) as compilation,
        # Of a stream only before its first window: an alarm that goes on would be lost.
        _stopped_by_interrupt(compilation, lambda: not (is_live and watch.summary.num_windows)) as stop,
        _opened_stream(log, follow, bus, interface, reading, stop) as stream,
        _opened(out, is_live) as (written, has_heading),
    ):
        writer = AlarmWriter(written, alarm_format, has_heading)
        if alarm_format == "csv":
            writer.write_heading()
        look = Look(with_habits=False)
        chunks: Iterator[Messages] = stream if is_live else takewhile(lambda _: not stop.is_set(), stream)
        if bus is None:  # times of a bus are those of the interface
            chunks = _looked_at(log or follow or Path(), chunks, look, reading, FEWEST_LIVE if is_live else 1)
        if profile is not None and learned is not None:
            chunks = _fitting(profile, learned, chunks, is_live)
        for alarm in watch.run(chunks):
            writer.write(alarm, watch.summary.first_s)
            num_alarms += 1
            if timeline is not None and num_alarms <= MAX_DRAWN:
                alarms.append(alarm)
    if picture is not None and timeline is not None:
        threshold = chosen.detector.threshold if chosen.networks else None
        draw_timeline(picture, bus or (log or follow or Path()).name, timeline, alarms, threshold, num_alarms)
    is_broken_off = stop.is_set() and not is_live
    problem = "" if is_broken_off else watch.summary.problem(bool(chosen.networks))
    if not quiet:
        seen = look.findings()
        notes = (*_notes(stream.status), *(f"note: {note}" for note in seen.notes()))
        part = "interrupted before the end: " if is_broken_off else ""
        summary = f"{part}{watch.summary.sentence()}{unjudged_text(watch.summary, seen.num_identifiers)}"
        for note in notes if problem else (*notes, f"{summary} (detector {chosen.detector.model})"):
            say(note)
    if is_broken_off:  # half a log without an alarm is not a log without an alarm
        raise typer.Exit(EXIT_INTERRUPTED)
    if problem:
        raise UserError(f"{log or follow or bus}: {problem}")
    raise typer.Exit(EXIT_ALARMS if watch.summary.num_alarms else 0)


def unjudged_text(summary: "Summary", num_identifiers: int) -> str:
    """Say behind a summary why identifiers could not be judged by their times; nothing of those that nobody counted."""
    num_uneven, num_seldom = summary.num_frequent - summary.num_judged, num_identifiers - summary.num_frequent
    if num_uneven > 0:  # which the summary says
        uneven = "" if summary.is_by_other_signs else f", {num_uneven:,} came unevenly"
        return f"{uneven}{f', {num_seldom:,} more too seldom or briefly' if num_seldom > 0 else ''}"
    named, whose = counted(num_seldom, "identifier"), "its" if num_seldom == 1 else "their"
    return f"; {named} came too seldom or briefly to be judged by {whose} times" if num_seldom > 0 else ""


def _refuse_unused(reading: RecordingOptions, follow: Path | None, bus: str | None) -> None:
    """Refuse options of reading that do nothing here: a bus has no text, and damage of a log that grows is counted."""
    unused = [name for name in reading.given() if bus is not None or name == "--max-bad-fraction"]
    if unused and (bus is not None or follow is not None):
        source = "-i" if bus is not None else "--follow"
        raise UserError(f"{', '.join(unused)} cannot be used with {source}: leave it out, or give a finished LOG")


def require_runtime(command: str) -> None:
    """Refuse to go on where networks cannot be run because the part of the package that does it is missing."""
    if importlib.util.find_spec(INTERFACE_PACKAGE) is None:
        raise UserError(f"kdgat {command} needs {INTERFACE_PACKAGE}: pip install 'kdgat[data,export]'")


def _fitting(path: Path, profile: "Profile", chunks: "Iterable[Messages]", is_live: bool) -> "Iterator[Messages]":
    """Hand on chunks after a look at their first seconds: UserError if the profile is not of their vehicle.

    Of a stream nothing is held back, and who watches is told: what an attacker does there must not end the watch.
    """
    from kdgat.canbus.features.bus_time import BusClock
    from kdgat.canbus.profile import FITS_S

    clock, is_asked = BusClock(), False
    first: float | None = None
    kept: list[Messages] = []
    for chunk in chunks:
        if not is_asked and len(chunk):
            time = clock.read(chunk.timestamp).time
            first = float(time[0]) if first is None else first
            kept.append(chunk)
            if is_asked := bool(time[-1] > first + FITS_S) or len(kept) > MOST_PARTS:
                _refuse_misfit(path, profile, kept, is_live)
                kept = kept[:0]
        yield chunk
    if kept:
        _refuse_misfit(path, profile, kept, is_live)


def _refuse_misfit(path: Path, profile: "Profile", parts: "list[Messages]", is_live: bool) -> None:
    import numpy as np

    columns = (np.concatenate([getattr(one, name) for one in parts]) for name in ("timestamp", "identifier"))
    if problem := profile.misfit(*columns):
        if not is_live:
            raise UserError(f"{path} {problem}")
        say(f"note: {path} {problem}")


def _opened_stream(
    log: Path | None, follow: Path | None, bus: str | None, interface: str | None, reading: RecordingOptions, stop: Any
) -> "MessageStream":
    from kdgat.canbus import follow_file, stream_recording

    if log is not None:
        return stream_recording(
            log, channel=reading.channel, limits=reading.limits(), options=reading.read(), stop=stop
        )
    if follow is not None:
        return follow_file(follow, channel=reading.channel, options=reading.read(), stop=stop)
    from kdgat.canbus import open_bus

    assert bus is not None
    assert interface is not None
    return open_bus(bus, interface, stop=stop)


@contextmanager
def _stopped_by_interrupt(compilation: Compilation, may_end: Callable[[], bool]) -> "Iterator[threading.Event]":
    """Yield an event that Ctrl-C or SIGTERM sets, which ends a stream between two chunks; a second one the program.

    So does the first one while numba compiles, for a minute maybe, where the program `may_end`.
    """
    stop = threading.Event()

    def end(_number: int, _frame: object) -> None:
        if stop.is_set() or may_end():
            compilation.stop()
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _looked_at(
    path: Path, chunks: "Iterable[Messages]", look: "Look", reading: RecordingOptions, next_look: int
) -> "Iterator[Messages]":
    """Hand on chunks of a log after a look at them; RecordingError, with the fix, once it is clear that none is of use.

    The first look is after so many messages, as a rule before any is judged; then each time there are twice as many.
    """
    from kdgat.canbus import RecordingError

    said, num_messages = reading.read(), 0
    for chunk in look.watched(chunks):
        num_messages += len(chunk)
        if num_messages >= next_look:
            next_look = 2 * num_messages
            if problem := look.findings().problem(said):
                raise RecordingError(path, problem)
        yield chunk
    if problem := look.findings().problem(said):
        raise RecordingError(path, problem)


def _notes(status: "StreamStatus") -> Iterator[str]:
    """Say what of a stream was not judged, and why."""
    from kdgat.canbus.messages import list_passed_over

    lost = "lost, it was faster than they were judged"
    first = [f"; line {row.line}: {row.reason}" for row in status.bad_rows[:1]]
    counts = (
        (status.num_bad_rows, "damaged row was", "damaged rows were", "passed over" + "".join(first)),
        (status.num_dropped, "message of the bus was", "messages of the bus were", lost),
        (status.num_reconnects, "new beginning", "", f"after {status.last_error}"),
    )
    yield from (f"note: {counted(count, one, many)} {what}" for count, one, many, what in counts if count)
    yield from (f"note: not judged: {what}" for what in list_passed_over(status.passed_over))


@contextmanager
def _opened(path: Path | None, is_live: bool) -> Iterator[tuple[TextIO, bool]]:
    """Yield where alarms are written, and whether there are some already: what was seen live is nowhere else."""
    if path is None:
        yield sys.stdout, False
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if is_live else "w", encoding="utf-8") as stream:
        yield stream, stream.tell() > 0
