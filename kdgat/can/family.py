"""What the CAN family is to commands, flows and reports: planning without torch, telling with lazy imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdgat.can.config import CanConfig, DataConfig
from kdgat.can.evaluation.results import Results, compared_table, models_table, scores_table
from kdgat.can.inputs import can_run
from kdgat.can.models.parameters import parameter_counts
from kdgat.can.plan import FAMILY as NAME
from kdgat.can.recordings.catalog import DatasetError, find_entry, find_recordings, split_roles
from kdgat.can.recordings.messages import ReadLimits
from kdgat.can.sections import WindowConfig, num_windows
from kdgat.cluster.resources import Resources
from kdgat.family.protocol import Family, Option, PlanTable
from kdgat.run.directory import OutputDirectory
from kdgat.run.plan import Run
from kdgat.run.table import Table
from kdgat.stage.directory import RunDirectory

if TYPE_CHECKING:
    from kdgat.report.content import RunContent
    from kdgat.report.document import Document


class CanFamily(Family):
    """Detectors of intrusions into CAN buses: recordings in, a calibrated detector and its evaluation out."""

    name = NAME
    title = "CAN intrusion detectors"
    training_help = (
        "Train CAN intrusion detectors: recordings in, an evaluated and calibrated detector and a report out.\n\n"
        "A command that was stopped or killed goes on where it was when it is given again. With --site NAME each stage "
        "runs in a job of a cluster; what a job asks for is in the configuration (`resources`), and `kdgat plan can` "
        "prints it."
    )
    flow = "flows.can_ids:can_ids"
    options = (
        Option(
            "dataset",
            "Name in the catalog, or of a folder under --data-root.",
            key="data.dataset",
            is_required=True,
            plan_default="synthetic",
        ),
        Option(
            "data_root",
            "Folder that holds the dataset's folder.",
            key="data.data_root",
            type=Path,
            is_required=True,
            plan_default=Path("data"),
        ),
        Option(
            "hold_out",
            "Vehicle or word in recording names: never trained on, tested on. Repeatable.",
            key="data.hold_out",
            is_many=True,
        ),
        Option("catalog", "YAML file with entries of your own datasets.", key="data.catalog", type=Path),
    )
    config = CanConfig
    results = Results

    def plan(self, config: CanConfig) -> Run:
        """Describe a run; ConfigurationError, RunError or StartError where it cannot be one.

        Recordings need not be there to plan with.
        """
        return can_run(config)

    def check(self, config: CanConfig, out: Path) -> None:
        """Refuse, before anything is started, to train on a dataset that is not there: DatasetError."""
        find_entry(config.data.dataset, config.data.data_root, config.data.catalog)

    def describe(self, run: Run, jobs: Mapping[str, Resources], options: Mapping[str, Any]) -> PlanTable:
        """Return epochs and parameters of every stage, and what the recordings hold."""
        config: CanConfig = run.config  # type: ignore[assignment]
        counts = parameter_counts(config)
        cells = {}
        for planned in run.plan:
            epochs = planned.config.get("training", {}).get("max_epochs")
            count = counts.get((planned.stage, planned.scale))
            cells[planned.name] = ["" if epochs is None else f"up to {epochs}", "" if count is None else f"{count:,}"]
        data = describe_data(config.data, config.windows)
        return PlanTable(("epochs", "parameters"), cells, sources="recordings", before=[data])

    def collect(self, output: OutputDirectory) -> Results:
        """Decide from the scores of all seeds, and write results.json and the scores of each window."""
        from kdgat.can.evaluation.stage import collect_results  # torch: it asks the detectors what they are made of

        return collect_results(output)

    def tables(self, results: Results) -> list[Table]:
        """Return the default detector on every scenario, and the F1 of every model."""
        compared = compared_table(results)
        return [scores_table(results), models_table(results), *([] if compared is None else [compared])]

    def conclusions(self, results: Results) -> list[str]:
        """Say in one sentence how the default detector scores."""
        f1 = ", ".join(
            f"{scenario} {'-' if value is None else f'{value:.4f}'}" for scenario, value in results.f1.items()
        )
        return [f"{results.detector.name}: F1 {f1}" if f1 else f"{results.detector.name}: no test scenario"]

    def report(self, content: RunContent[Results]) -> Document:
        """Return the sections of the report."""
        from kdgat.can.report.page import document  # plotly

        return document(content)

    def evaluate(
        self,
        run: Path,
        data_root: Path,
        dataset: str | None,
        *,
        catalog: Path | None,
        progress: Callable[[str, int, int], None],
    ) -> Results:
        """Score all recordings that the run was not trained on; see `kdgat.can.evaluation.stage.evaluate_run`."""
        from kdgat.can.evaluation.stage import evaluate_run

        return evaluate_run(run, data_root, dataset, catalog=catalog, progress=progress)

    def make_evaluation(self, run: Path, data_root: Path, dataset: str | None, catalog: Path | None) -> RunDirectory:
        """Make the run directory of a stage that does the same; see `kdgat.can.evaluation.stage.make_evaluation`."""
        from kdgat.can.evaluation.stage import make_evaluation

        return make_evaluation(run, data_root, dataset, catalog)

    def notes(self, results: Results) -> Iterable[str]:
        """Return what was left out and what has no labels."""
        return results.data.notes


def describe_data(data: DataConfig, windows: WindowConfig) -> str:
    """Say in a sentence what the recordings hold, or that they are not there."""
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    try:
        found = find_recordings(
            data.data_root, data.dataset, catalog=data.catalog, leave_out=data.leave_out, limits=limits
        )
    except DatasetError as error:
        return f"no recordings to count windows in: {error}"
    recordings = split_roles(found, data.hold_out)
    parts = []
    tests = [file for files in recordings.test.values() for file in files]
    for files, noun in ((recordings.train, "training"), (tests, "test")):
        count = sum(num_windows(file.num_messages, windows) for file in files)
        parts.append(f"{len(files)} {noun} recordings ({count:,} windows)")
    copies = f"; {len(recordings.dropped)} copies left out" if recordings.dropped else ""
    share = f"the last {data.validation_fraction:.0%} of each training recording validates"
    return f"{data.dataset}: {', '.join(parts)}{copies}; {share}"


FAMILY = CanFamily()
