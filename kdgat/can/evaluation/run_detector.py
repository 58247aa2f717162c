"""The detectors that a finished run can decide by, calibrated on its validation windows; nothing here loads torch."""

from collections.abc import Sequence

from kdgat.base import UserError, validate_config
from kdgat.can.evaluation.accumulated_evidence import learn_accumulation
from kdgat.can.evaluation.accumulation import Accumulation
from kdgat.can.evaluation.decision import DefaultDetector, calibrated_detector, choose_detector, model_names
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.canbus import WindowConfig
from kdgat.canbus.features import VALIDATION


def detector_of(run: FinishedCanRun, name: str | None = None, seeds: Sequence[int] | None = None) -> DefaultDetector:
    """Return the detector of this name and these seeds, calibrated on the run's validation; by default its own.

    Raises UserError for a name or a seed that the run does not have.
    """
    config, validation = run.evaluation_config(), run.tables(VALIDATION)
    missing = [seed for seed in seeds or () if seed not in validation]
    if missing:
        raise UserError(f"{run.output.path} has no seed {missing[0]}; it has: {', '.join(map(str, validation))}")
    chosen = {seed: validation[seed] for seed in seeds or validation}
    if name is None:
        return choose_detector(chosen, config)
    known = model_names(next(iter(chosen.values())))
    if name not in known:
        raise UserError(f"{run.output.path} has no detector {name!r}; it has: {', '.join(known)}")
    return calibrated_detector(name, chosen, config, with_habits=True)


def accumulation_of(run: FinishedCanRun, detector: DefaultDetector) -> Accumulation | None:
    """Return what of a detector's evidence adds up, learned from the run's validation; None where nothing does."""
    validation = {seed: table for seed, table in run.tables(VALIDATION).items() if seed in detector.scalings}
    return learn_accumulation(detector, validation, run.node_scores(VALIDATION), run.evaluation_config())


def windows_of(run: FinishedCanRun) -> WindowConfig:
    """Read how the run cuts recordings into windows."""
    return validate_config(WindowConfig, run.index.config.get("windows", {}))
