"""What commands, flows and reports need of the family; nothing here imports torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import describe_bytes
from kdgat.cluster import Estimate, Expectation, Resources, format_walltime
from kdgat.cluster.request import configured_request
from kdgat.family import DataSize, Family, Option, PlanTable
from kdgat.lap.config import LapConfig, with_two_in_one
from kdgat.lap.evaluation.results import LapResults
from kdgat.lap.inputs import lap_run
from kdgat.lap.names import FAMILY as NAME
from kdgat.lap.plan import members
from kdgat.lap.training.schedule import (
    RATES,
    Forecast,
    Rates,
    count_files,
    forecast,
    instances,
    pack,
    rates_here,
    read_rates,
)
from kdgat.run import OutputDirectory, Run, Table

if TYPE_CHECKING:
    from torch import nn

    from kdgat.report import Document, RunContent

OPTIONS: Final = (
    Option(
        "stages",
        "Stages to run, with what they need, as --stages small_512_only.",
        key="stages",
        is_many=True,
        is_override=True,  # -O may give the progression other stages than the preset has
    ),
    Option(
        "data",
        "Folder of files that `kdgat lap bucket` wrote; without it instances are generated.",
        key="data.source",
        type=Path,
    ),
    Option(
        "two_in_one",
        "Train the first two stages in one job.",
        type=bool,
        apply=lambda config, _: with_two_in_one(config),
    ),
    Option(
        "measured", "Rates that `kdgat lap analyze --memory --json FILE` measured.", type=Path, plan_only=True
    ),
)  # fmt: skip


class LapFamily(Family):
    """Learned warm starts for linear assignment."""

    name = NAME
    title = "learned warm starts for linear assignment"
    training_help = (
        "Train networks that warm-start linear assignment, from small matrices to large, and measure what they save."
        "\n\nA command that was stopped or killed goes on where it was when it is given again; so does one with more "
        "--stages. With --site NAME each stage runs in jobs of a cluster, and goes on in the next one where the "
        "walltime cut it; `kdgat plan lap` prints what they ask for."
    )
    flow = "flows.lap:lap"
    options = OPTIONS
    config = LapConfig
    results = LapResults

    def plan(self, config: LapConfig) -> Run:
        """Describe a run; errors as of `lap_run`."""
        return lap_run(config)

    def describe(self, run: Run, jobs: Mapping[str, Resources], options: Mapping[str, Any]) -> PlanTable:
        """Return instances, batches, predicted memory and time of each stage, and which would fit into one job."""
        config = run.config
        assert isinstance(config, LapConfig)
        trained = [jobs[planned.name] for planned in run.plan if planned.name in jobs and members(planned)]
        if "measured" in options:
            rates = read_rates(options["measured"])
        else:
            rates = RATES["gpu" if all(job.gpus for job in trained) else "cpu"] if jobs else rates_here()
        counts = count_files(config)
        forecasts = forecast(config, run.plan, rates, counts)
        return PlanTable(
            headings=("instances", "batch", "steps", "memory"),
            cells={one.name: _cells(one, config) for one in forecasts},
            sources="nothing" if counts is None else "files",
            after=_shared_jobs(config, forecasts, min(job.walltime_s for job in trained)) if trained else (),
            times={one.name: _time(one, rates) for one in forecasts},
        )

    def data_size(self, config: LapConfig) -> DataSize:
        """Return the instances of all chosen stages that train."""
        counts = count_files(config)
        total = sum(instances(config, name, counts)["train"] for name in config.chosen())
        source = "as the configuration generates them" if counts is None else f"counted in {config.data.source}"
        return DataSize("generated" if counts is None else str(config.data.source), total, source)

    def assume(self, run: Run, inputs: Mapping[str, Path] | None = None) -> Mapping[str, Expectation]:
        """Return what `kdgat plan lap` predicts for stages on a processor; of a GPU nothing was measured."""
        config = run.config
        assert isinstance(config, LapConfig)
        counts = count_files(config)
        on_cpu = [one for one in run.plan if not configured_request(one.stage, run.resources).gpus]
        forecasts = forecast(config, on_cpu, RATES["cpu"], counts)
        return {one.name: {"walltime": _time(one, RATES["cpu"])} for one in forecasts}

    def reads(self, config: LapConfig) -> Any:
        """Return what decides which instances and weights are read."""
        return [config.data.model_dump(mode="json"), config.start_from]

    def validated_on(self, preparation: Mapping[str, Any]) -> Any:
        """Return what decides which instances validate: the loss is a gap to their optimum, in whatever graphs."""
        generated = preparation["generate"] or {}
        return [preparation["size"], {key: one for key, one in generated.items() if key not in ("train", "test")}]

    def load_model(self, weights: Path) -> "nn.Module":
        """Return the network that predicts duals; `kdgat.lap.api.WarmStart` solves with it."""
        from kdgat.lap.models.predictor import Predictor

        return Predictor.load(weights).model.eval()

    def collect(self, output: OutputDirectory) -> LapResults:
        """Summarise the evaluations of all seeds; errors as of `collect_results`."""
        from kdgat.lap.evaluation.stage import collect_results

        return collect_results(output)

    def tables(self, results: LapResults) -> Sequence[Table]:
        """Return the comparison, and as details every method at the largest size and the table of the Prefect UI."""
        from kdgat.lap.evaluation.tables import comparison_table, methods_tables, results_table

        return [comparison_table(results), *methods_tables(results), results_table(results)]

    def conclusions(self, results: LapResults) -> Sequence[str]:
        """Say whether the trained model beats what there is."""
        from kdgat.lap.evaluation.results import headlines

        return headlines(results)

    def report(self, content: "RunContent[LapResults]") -> "Document":
        """Return the report."""
        from kdgat.lap.report.page import document

        return document(content)


def _cells(one: Forecast, config: LapConfig) -> list[str]:
    return [
        f"{one.num_instances:,}",
        "" if one.num_graphs is None else f"{one.num_graphs} of n={config.progression[one.stages[-1]].size}",
        "" if one.num_steps is None else f"{one.num_steps:,}",
        describe_bytes(one.peak_bytes),
    ]


def _time(one: Forecast, rates: Rates) -> Estimate:
    how = "measured" if rates.is_measured else "estimated"
    return Estimate(math.ceil(one.seconds), None, f"{how} rates of {rates.device}: all epochs")


def _shared_jobs(config: LapConfig, forecasts: Sequence[Forecast], walltime_s: int) -> list[str]:
    """Say which stages would fit into one job together, unless they share it already."""
    of_one_seed = [one for one in forecasts if one.is_training][: len(config.groups())]
    fitting = [job for job in pack(of_one_seed, walltime_s) if len(job) > 1]
    if not fitting or fitting == [list(group) for group in config.groups() if len(group) > 1]:
        return []
    groups = ", ".join(f"[{', '.join(job)}]" for job in fitting)
    return [f"These fit into one job of {format_walltime(walltime_s)} together: -O 'jobs=[{groups}]'"]


FAMILY: Final = LapFamily()
