"""Run one attempt at a stage: lock, verify inputs, call the family's code, write down how it ended."""

import errno
import importlib
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from kdgat.base.hashes import KnownHashes
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import OwnerLostError, StopRequested
from kdgat.stage.families import family_package, is_mistake
from kdgat.stage.faults import describe_fault, is_environment_fault
from kdgat.stage.gpus import gpu_sampled
from kdgat.stage.log import stage_log
from kdgat.stage.outcome import Failed, FailureKind, Finished, Outcome, Paused
from kdgat.stage.process import garbage_kept
from kdgat.stage.provenance import code_difference, record_attempt
from kdgat.stage.signals import StopFlag, stop_signals
from kdgat.stage.spec import StageSpec
from kdgat.stage.staging import staged

logger = logging.getLogger(__name__)

EVIDENCE_LINES = 12

StageFunction = Callable[[StageSpec, RunDirectory], Outcome]


def run_stage(directory: RunDirectory, quiet: bool = False) -> Outcome:
    """Run the stage that `directory` describes and return its outcome, which is also in `outcome.json`.

    A finished stage is not run again: its outcome is returned as it is.

    Raises:
        StageBusyError: if another process owns the directory.
        OwnerLostError: if another process took it over; its outcome is not ours to write.
        RunDirectoryError: if there is no valid spec.
    """
    spec = directory.read_spec()
    directory.quiet = quiet
    stop, is_ours = StopFlag(), False
    try:
        # The signals first: one that comes while the directory is locked pauses the stage like any other.
        with stop_signals() as stop, directory.lock(), stage_log(directory, quiet):
            is_ours = True
            return _run_owned(spec, directory, stop)
    finally:
        if not is_ours:
            stop.hand_on()  # there is nothing that it could pause, and who waits for the directory would wait on


def _run_owned(spec: StageSpec, directory: RunDirectory, stop: StopFlag) -> Outcome:
    """Run the stage of a directory that is ours; as of `run_stage`."""
    previous = directory.read_outcome()
    if isinstance(previous, Finished):
        logger.info("%s is finished already", directory.path.name)
        return previous
    if difference := code_difference(directory.provenance_path):
        logger.warning("%s resumes with other code than its last attempt: %s", directory.path.name, difference)
    directory.remove_outcome()
    directory.write_work()  # from here on it is that of this attempt
    record_attempt(directory.provenance_path, spec)
    logger.info("%s/%s scale %s seed %d: start", spec.family, spec.stage, spec.scale, spec.seed)
    try:
        outcome = attempt(spec, directory, stop)
    except OwnerLostError:
        logger.exception("the run directory has a new owner")
        raise
    directory.write_work()
    directory.write_outcome(outcome)
    _log_outcome(outcome)
    if isinstance(outcome, Finished):
        note_hashes(directory, outcome)
    return outcome


def attempt(spec: StageSpec, directory: RunDirectory, stop: StopFlag) -> Outcome:
    """Call the stage and translate whatever it raises to an outcome."""
    outcome: Outcome | None = None
    try:
        with stop.interrupting():
            verify_inputs(spec, directory)
            with gpu_sampled(directory.work), staged(spec, directory) as used:
                directory.used_spec = used
                outcome = find_stage_function(spec.family)(used, directory)
        return outcome
    except StopRequested:
        return outcome or _interrupted(directory, stop)  # it may come after the work, while things are put away
    except OwnerLostError:
        raise
    except Exception as error:
        if stop.has_interrupted:
            # Python makes a TypeError of what interrupts the loading of a compiled module, and libraries have errors of
            # their own: had nobody asked the stage to leave, there would be none.
            logger.warning(
                "%s interrupted the stage, which raised %s", stop.signal_name, type(error).__name__, exc_info=True
            )
            return outcome or _interrupted(directory, stop)
        kind = failure_kind(error)
        # A mistake of the user needs its sentence; everything else needs the traceback too.
        logger.error("the stage raised %s", type(error).__name__, exc_info=kind is not FailureKind.BAD_INPUT)
        return Failed(kind=kind, evidence=describe_exception(error))


def _interrupted(directory: RunDirectory, stop: StopFlag) -> Paused:
    return Paused(
        checkpoint=directory.newest_checkpoint(),
        reason=f"{stop.signal_name} received outside of training: this part of the stage starts again",
    )


def find_stage_function(family: str) -> StageFunction:
    """Import the module `stages` of a family and return its `run`; an unknown family is the user's mistake."""
    with garbage_kept():
        function: StageFunction = importlib.import_module(f"{family_package(family)}.stages").run
    return function


def verify_inputs(spec: StageSpec, directory: RunDirectory) -> None:
    """Check that every input is the one that the spec names; StageInputError if not."""
    known = KnownHashes(directory.hashes_path)
    paths = {source.verify(directory.path, known) for source in spec.inputs.values()}
    known.write()
    directory.work.count_inputs(paths)


def note_hashes(directory: RunDirectory, outcome: Finished) -> None:
    """Note the hashes of what a stage has written, so that nobody else reads it to know them."""
    known = KnownHashes(directory.hashes_path)
    for name in outcome.artifacts.values():
        with suppress(OSError):
            known.sha256(directory.path / name, is_finished=True)
    known.write()


def failure_kind(error: BaseException) -> FailureKind:
    """Classify an exception; torch's are recognised by name, because this layer does not import torch."""
    cls, text = type(error), str(error)
    if (cls.__name__ == "OutOfMemoryError" and cls.__module__.startswith("torch")) or "CUDA out of memory" in text:
        return FailureKind.CUDA_OOM
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if no_memory or "DefaultCPUAllocator: can't allocate memory" in text:
        return FailureKind.HOST_OOM
    if is_environment_fault(error):
        return FailureKind.ENVIRONMENT
    if isinstance(error, FloatingPointError):
        return FailureKind.NUMERIC
    if isinstance(error, ValidationError) or is_mistake(error):
        return FailureKind.BAD_INPUT
    return FailureKind.ERROR


def describe_exception(error: BaseException) -> str:
    """Return the message, and for unexpected errors the last lines of the traceback."""
    if failure_kind(error) in (FailureKind.BAD_INPUT, FailureKind.NUMERIC):
        return str(error)
    if is_environment_fault(error) and (sentence := describe_fault(error)) is not None:
        return sentence
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-EVIDENCE_LINES:])


def _log_outcome(outcome: Outcome) -> None:
    if isinstance(outcome, Failed):
        logger.error("failed (%s): %s", outcome.kind, outcome.evidence)
    elif isinstance(outcome, Paused):
        logger.info("paused: %s", outcome.reason)
    else:
        logger.info("finished: %s", outcome.describe_metrics())
