"""What `import kdgat` gives: the commands as calls, a run as an object, and its numbers as pandas data frames.

Each delegates to what the command of its name runs: same keys, same files, the same run resumed by either.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdgat.base import UserError, check_folder, unknown_key_text
from kdgat.cluster import load_site
from kdgat.family import (
    Detects,
    Family,
    ScoringRequest,
    family_config,
    find_family,
    flattened,
    read_runs,
    read_summary,
)
from kdgat.registry import find_model
from kdgat.run import WEIGHTS, FinishedRun, Measure, OutputDirectory, Run, RunConfig, RunError, StageState, run_locally
from kdgat.run.attempts import attempts_at
from kdgat.run.finished import has_results
from kdgat.stage import RunDirectory

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

logger = logging.getLogger(__name__)

Source = Path | str | Mapping[str, Any] | None  # of a configuration: a YAML file, its content, `SavedRun.config`
Seeds = int | Sequence[int] | None
Overrides = Mapping[str, Any] | Sequence[str] | None  # or as -O takes them: "key=value"


class SavedRun:
    """A run as its output directory has it, finished or not; each look reads the files anew."""

    def __init__(self, path: Path | str) -> None:
        """Find it; RunError if there is no run."""
        self.path = _named(path, "path")
        self._output = OutputDirectory(self.path)
        self.family = self._output.read_index().family

    def __repr__(self) -> str:
        return f"SavedRun({str(self.path)!r}: {self.family}, {self.state})"

    @property
    def config(self) -> dict[str, Any]:
        """Return its configuration, which `train` takes as `config`."""
        return self._output.read_index().config

    @property
    def state(self) -> str:
        """Return "finished", or where it stands."""
        return read_summary(self.path).state

    @property
    def validation(self) -> Measure | None:
        """Return the number that configurations may be chosen by; None before its stage has trained."""
        return read_summary(self.path).objective

    @property
    def stages(self) -> DataFrame:
        """Return a row per stage: its kind, scale, seed, state, attempts, and why it ended so."""
        names = ("stage", "scale", "seed", "state")
        rows = [
            {
                "name": one.name,
                **{key: getattr(one, key) for key in names},
                "attempts": len(attempts_at(self._output, one)),
                "reason": one.reason,
            }
            for one in self._output.read_index().stages
        ]
        return _frame(rows, "name")

    @property
    def results(self) -> DataFrame:
        """Return a row per measure of the tests, the most important first; none before the evaluations have ended."""
        return _measures(read_summary(self.path).measures)

    @property
    def metrics(self) -> DataFrame:
        """Return what training has logged so far: a row per line of each stage's metrics.jsonl."""
        started = [record for record in self._output.read_index().stages if record.directory is not None]
        return _frame(
            {"name": record.name, "stage": record.stage, "scale": record.scale, "seed": record.seed, **row}
            for record in started
            for row in self._output.stage_directory(record).read_metrics()
        )

    def load_model(self, stage: str | None = None, seed: int | None = None, artifact: str = WEIGHTS) -> nn.Module:
        """Load a trained network, in eval mode; arguments and errors as of `kdgat.load_model`."""
        run, family = FinishedRun(self._output), find_family(self.family)
        done = [(one, run.outcome(one).artifacts) for one in run.records()]
        trained = [one for one, artifacts in done if any(name.startswith(WEIGHTS) for name in artifacts)]
        kinds = list(dict.fromkeys(one.stage for one in trained))
        stage = stage or family.judged_stage(kinds)
        of_stage = [one for one in trained if stage in (one.name, one.stage)]
        found = [one for one in of_stage if seed in (None, one.seed)]
        if not found:
            what = unknown_key_text(str(stage), [*kinds, *(one.name for one in trained)])
            if of_stage:
                what = f"seeds that have one: {', '.join(str(one.seed) for one in of_stage)}"
            asked = f"{'' if stage is None else f' {stage}'}{'' if seed is None else f' of seed {seed}'}"
            raise RunError(f"{self.path} has no trained stage{asked}: {what if trained else 'none has finished'}")
        return family.load_model(run.artifact(found[0], artifact))


def plan(
    family: str,
    *,
    preset: str | None = None,
    seeds: Seeds = None,
    config: Source = None,
    overrides: Overrides = None,
    **options: Any,
) -> Run:
    """Plan a run: its stages, in `plan`, and its configuration; `options` are those of `kdgat train FAMILY`."""
    found = find_family(family)
    settings = _configured(found, preset, seeds, config, overrides, options, is_plan=True)
    planned = found.plan(settings)
    try:
        found.check(settings, None)
    except UserError as error:  # a plan needs no data
        logger.warning("`kdgat.train` refuses this as long as that is so: %s", error)
    return planned


def train(
    family: str,
    out: Path | str,
    *,
    preset: str | None = None,
    seeds: Seeds = None,
    config: Source = None,
    overrides: Overrides = None,
    only: Collection[str] | None = None,
    quiet: bool = False,
    **options: Any,
) -> SavedRun:
    """Train and evaluate in this process, without Prefect; the same call, or `kdgat train`, resumes.

    Args:
        family: `can`, `lap`, `trees`, or one of another distribution.
        out: output directory.
        preset: quick, full or tutorial.
        seeds: to train with, or one.
        config: a YAML file, or its content.
        overrides: single keys on top, as {"training.max_epochs": 2}, or as ["training.max_epochs=2"].
        only: these stages, or this one, by their names in the plan, and what they need.
        quiet: leave the stages' log in their directories.
        options: of `kdgat train FAMILY`, as data_root="data".

    Raises:
        RunError: if a stage fails or is stopped; what has finished stays.
        ValueError: of the configuration or the data, naming key, value and fix.
    """
    found = find_family(family)
    settings = _configured(found, preset, seeds, config, overrides, options)
    path = _named(out, "out")
    check_folder(path, "out")
    run = found.plan_into(settings, path)
    settings.require_loggers()
    with load_site("local").creating_files():
        run_locally(run, path, only, quiet=quiet)
        saved = SavedRun(path)
        output = OutputDirectory(saved.path)
        index = output.read_index()
        for record in index.stages:
            if record.state in (StageState.FAILED, StageState.PAUSED):
                raise RunError(
                    f"{record.name} {record.state}: {record.reason}; the same call goes on from there ({saved.path})"
                )
        if has_results(index):
            from kdgat.family.report import write_results  # plotly

            write_results(output)
    return saved


def evaluate(
    run: SavedRun | Path | str,
    data_root: Path | str,
    *,
    dataset: str | None = None,
    catalog: Path | str | None = None,
    profile: Path | str | None = None,
) -> DataFrame:
    """Score data that a finished run was not trained on, as `kdgat evaluate`; a row per measure."""
    saved = run if isinstance(run, SavedRun) else SavedRun(run)
    family = find_family(saved.family)
    if not isinstance(family, Detects):
        raise UserError(f"{saved.path} is a run of {family.name}, which scores no data of others: {_FIX}")
    paths = (None if one is None else Path(one) for one in (catalog, profile))
    request = ScoringRequest(saved.path, Path(data_root), dataset, *paths)
    return _measures(family.evaluate(request, lambda what, done, total: None).measures())


_FIX = "its `results` are those of its own tests"


def load_run(path: Path | str) -> SavedRun:
    """Return the run that lies in an output directory; RunError if none does."""
    return SavedRun(path)


def list_runs(folder: Path | str = "runs", *, family: str | None = None) -> DataFrame:
    """Return a row per run in a folder and below: state, validation, results, and each key of its configuration.

    Runs that cannot be read are told of in the log.
    """
    found, unreadable = read_runs(Path(folder), family)
    for text in unreadable:
        logger.warning("%s", text)
    return _frame(
        (
            {
                "path": str(run.path),
                "family": run.index.family,
                "created": run.begun,
                "state": run.state,
                "validation": None if run.objective is None else run.objective.value,
                "validation_measure": None if run.objective is None else run.objective.name,
                **{f"results.{one.name}": one.value for one in run.measures},
                **{f"config.{key}": value for key, value in flattened(run.index.config).items()},
            }
            for run in found
        ),
        "path",
    )


def load_model(
    source: SavedRun | Path | str,
    stage: str | None = None,
    seed: int | None = None,
    artifact: str = WEIGHTS,
    *,
    registry: Path | str | None = None,
) -> nn.Module:
    """Load a trained network, in eval mode, on the CPU.

    Args:
        source: a run, or a weights file in the directory of its stage, or the id of a registered model.
        stage: which one trained it, by its kind or its name in the plan; by default the one that runs are compared by.
        seed: of the run; by default its first.
        artifact: of the stage, where it has trained several.
        registry: where ids are looked up; by default $KDGAT_REGISTRY.

    Raises:
        RunError: if no such stage has trained, naming those that have.
        WeightsError, RegistryError: if the file is damaged, or no model has this id.
    """
    if isinstance(source, SavedRun):
        return source.load_model(stage, seed, artifact)
    _named(source, "source")
    path = find_model(str(source), registry).absolute()
    if path.is_dir():
        return SavedRun(path).load_model(stage, seed, artifact)
    of_stage = next((one for one in path.parents if RunDirectory(one).spec_path.is_file()), None)
    if of_stage is None:
        raise UserError(f"{path} lies in no stage's directory, whose spec says of which family it is: name the run")
    return find_family(RunDirectory(of_stage).read_spec().family).load_model(path)


def _configured(
    family: Family,
    preset: str | None,
    seeds: Seeds,
    config: Source,
    overrides: Overrides,
    options: Mapping[str, Any],
    *,
    is_plan: bool = False,
) -> RunConfig:
    known = {option.name: option for option in family.options if not option.plan_only}
    for name in options:
        if name not in known:
            raise UserError(f"{name} is no option of {family.name}: {unknown_key_text(name, list(known))}")
        if known[name].type is Path:
            _require(options[name], (str, Path), name, "a path")
    given = {
        name: Path(value) if known[name].type is Path else value
        for name, value in options.items()
        if value is not None and value is not False and value != []  # as of a command line without the option
    }
    missing = [option for option in known.values() if option.is_required and option.name not in given]
    if missing and not is_plan and config is None:
        raise UserError(f"{family.name} needs {' and '.join(one.name for one in missing)}, unless config gives it")
    _require(config, (str, Path, Mapping), "config", "a file, or its content as a mapping")
    of_file = Path(config) if isinstance(config, str) else config
    seeds = [seeds] if isinstance(seeds, int) else seeds
    _require(seeds, Collection, "seeds", "a whole number, or a list of them")
    _require(overrides, Collection, "overrides", _OVERRIDES)
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
    for one in overrides or ():
        _require(one, str, "overrides", _OVERRIDES)
    return family_config(family, preset, given, seeds, overrides, of_file, is_plan=is_plan)


_OVERRIDES = '{"training.max_epochs": 2} or ["training.max_epochs=2"]'


def _require(value: object, kind: Any, name: str, wanted: str) -> None:
    """Refuse an argument of another kind; text is no list of its letters."""
    if value is not None and (not isinstance(value, kind) or (isinstance(value, str) and kind is Collection)):
        raise UserError(f"{name}={value!r}: give {wanted}")


def _named(path: Path | str, what: str) -> Path:
    _require(path, (str, Path), what, "a path")
    if not str(path):  # the path of "" is the folder where one stands
        raise UserError(f"{what} is empty: name the directory of a run")
    return Path(path).absolute()


def _measures(measures: Iterable[Measure]) -> DataFrame:
    rows = [
        {
            "measure": one.name,
            "value": one.value,
            **{key: getattr(one.seeds, key, None) for key in ("mean", "low", "high")},
            "seeds": getattr(one.seeds, "count", None),
            "is_higher_better": one.is_higher_better,
        }
        for one in measures
    ]
    return _frame(rows, "measure")


def _frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> DataFrame:
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        raise UserError("tables are pandas data frames, and pandas is not installed: pip install pandas") from error
    frame = DataFrame(list(rows))
    return frame if index is None or frame.empty else frame.set_index(index)
