"""What the CAN family is to commands, flows and reports: planning without torch, telling with lazy imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdgat.base.text import describe_seconds
from kdgat.can.config import CanConfig
from kdgat.can.evaluation.results import DEFAULT_DETECTOR, Results
from kdgat.can.evaluation.tables import (
    NOTHING_TESTED,
    compare_with_networks,
    compared_table,
    format_range,
    format_share,
    hidden_table,
    kinds_table,
    models_table,
    scores_table,
    summary_table,
    vehicles_table,
    warn_of_few_windows,
)
from kdgat.can.folds import VEHICLES, judge_vehicles, vehicle_folds
from kdgat.can.inputs import can_run, check_evaluated, check_recordings, refuse_within_dataset
from kdgat.can.models.parameters import parameter_counts
from kdgat.can.plan import FAMILY as NAME
from kdgat.can.sizes import assume, data_size, data_sizes, describe_data, train_graphs
from kdgat.family import DataSize, Family, Option, PlanTable, ScoringRequest
from kdgat.family.protocol import VALIDATION
from kdgat.run import FinishedRun, Measure, OutputDirectory, Run, Table, counted
from kdgat.stage import RunDirectory
from kdgat.training.weights import read_description

if TYPE_CHECKING:
    from torch import nn

    from kdgat.cluster import Expectation, Resources
    from kdgat.report import Document, RunContent


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
    flow = "flows.can:can"
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
        Option("stages", "Stages to run, with what they need, as --stages normal fusion.", key="stages", is_many=True),
        Option("catalog", "YAML file with entries of your own datasets.", key="data.catalog", type=Path),
    )
    config = CanConfig
    results = Results
    objectives = (VEHICLES, VALIDATION)

    def plan(self, config: CanConfig) -> Run:
        """Describe a run; ConfigurationError, RunError or StageInputError where it cannot be one.

        Recordings need not be there to plan with.
        """
        return can_run(config)

    def check(self, config: CanConfig, out: Path | None) -> None:
        """Refuse, before anything is started, recordings that cannot be used, and an output directory among them."""
        if out is not None:
            refuse_within_dataset(config.data, out)
        check_recordings(config)

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

    def data_sizes(self, config: CanConfig) -> Sequence[tuple[DataSize, CanConfig]]:
        """Return every dataset of the catalog and of the data root."""
        return data_sizes(config)

    def data_size(self, config: CanConfig) -> DataSize:
        """Return the windows that train: counted in the recordings, or known of the dataset."""
        return data_size(config)

    def assume(self, run: Run, inputs: Mapping[str, Path] | None = None) -> Mapping[str, Expectation]:
        """Return what jobs of stages were given for as many windows; see `kdgat.can.sizes`."""
        config: CanConfig = run.config  # type: ignore[assignment]
        graphs = data_size(config).graphs if inputs is None else train_graphs(inputs)
        return {planned.name: assume(planned.stage, graphs, config.preset) for planned in run.plan}

    def collect(self, output: OutputDirectory) -> Results:
        """Decide from the scores of all seeds, and write results.json and the scores of each window."""
        from kdgat.can.evaluation.measurements import collect_results

        return collect_results(output)

    def tables(self, results: Results) -> list[Table]:
        """Return what the default detector finds; in detail the F1 of every model, and what these numbers hide."""
        more = (
            compared_table(results),
            hidden_table(results),
            vehicles_table(results),
            kinds_table(results),
        )
        if not results.scenarios:  # nothing was tested: these tables would be headings alone
            return [table for table in (hidden_table(results),) if table is not None]
        details = (scores_table(results), models_table(results), *more)
        return [summary_table(results), *(table for table in details if table is not None)]

    def conclusions(self, results: Results) -> list[str]:
        """Say how the default detector scores, and how beside the best network alone."""
        rows = list(results.scenarios.values())
        if not rows:
            return [NOTHING_TESTED]
        episodes = [row.breakdown.episodes for row in rows if row.breakdown and row.breakdown.episodes]
        f1 = [row.f1 for row in rows if row.f1 is not None]
        said = []
        if num_attacks := sum(one.num_episodes for one in episodes):
            said.append(f"{sum(one.num_found for one in episodes):,} of {counted(num_attacks, 'attack')} found")
        if f1:
            said.append(f"F1 {format_range(f1)}")
        benign = [row.breakdown for row in rows if row.breakdown and row.breakdown.num_false_episodes is not None]
        if seconds := sum(row.benign_s for row in benign):
            false_alarms = counted(sum(row.num_false_episodes or 0 for row in benign), "false alarm")
            said.append(f"{false_alarms} in {describe_seconds(seconds)} without attack")
        rates = [row.false_alarm_rate for row in rows if row.false_alarm_rate is not None]
        if rates:
            said.append(f"at most {format_share(max(rates))} of benign windows are in alarm")
        return [
            f"{DEFAULT_DETECTOR}: {'; '.join(said)}",
            *compare_with_networks(results),
            *warn_of_few_windows(results),
        ]

    def report(self, content: RunContent[Results]) -> Document:
        """Return the sections of the report."""
        from kdgat.can.report.page import document  # plotly

        return document(content)

    def load_model(self, weights: Path) -> nn.Module:
        """Return an attention network, an autoencoder, or the fusions of both."""
        from kdgat.can.models.scoring import load_network
        from kdgat.can.training.fusion import KIND, load_fusion

        kind = read_description(weights)["config"].get("kind")
        return (load_fusion(weights) if kind == KIND else load_network(weights, str(kind)))[0]

    def objective(self, run: FinishedRun) -> Measure | None:
        """Return what the attention network of the curriculum was stopped by: it is the default detector."""
        return run.validation("curriculum") or run.validation("normal")

    def folds(self, config: CanConfig, objective: str) -> Mapping[str, CanConfig]:
        """Return one run per vehicle that is left out; see `kdgat.can.folds`."""
        return vehicle_folds(config) if objective == VEHICLES else {"": config}

    def judged_stage(self, trained: Sequence[str]) -> str | None:
        """Name the attention network of the curriculum, or the plain one."""
        return next((stage for stage in ("curriculum", "normal") if stage in trained), None)

    def judge(self, folds: Mapping[str, OutputDirectory], objective: str) -> Sequence[Measure]:
        """Return F1 on the vehicles that were left out, or what `objective` says."""
        if objective != VEHICLES:
            return super().judge(folds, objective)
        return judge_vehicles(
            {
                name: Results.read(output.results_path) if output.results_path.is_file() else self.collect(output)
                for name, output in folds.items()
            }
        )

    def reads(self, config: CanConfig) -> Any:
        """Return what decides which recordings and weights are read."""
        return [config.data.model_dump(mode="json"), config.start_from]

    def evaluate(self, request: ScoringRequest, progress: Callable[[str, int, int], None]) -> Results:
        """Score all recordings that the run was not trained on, as `evaluate_run` does."""
        check_evaluated(request)
        from kdgat.can.evaluation.other_recordings import evaluate_run

        return evaluate_run(**vars(request), progress=progress)

    def make_evaluation(self, request: ScoringRequest) -> RunDirectory:
        """Make the run directory of a stage that does the same."""
        check_evaluated(request)
        from kdgat.can.evaluation.other_recordings import make_evaluation

        return make_evaluation(request)

    def notes(self, results: Results) -> Iterable[str]:
        """Return what was left out and what has no labels."""
        return results.data.notes


FAMILY = CanFamily()
