"""What a finished run hands to people: `results.json`, the report, and the artifacts in the Prefect UI."""

from pathlib import Path

from kdgat.report.page import write_report
from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from kdgat.can.evaluate import collect_results
from kdgat.can.results import Results, results_table
from kdgat.cli.tables import models_table
from kdgat.run.directory import OutputDirectory

COMPARED = ("autoencoder", "normal", "curriculum")


@task(name="results", task_run_name="results", cache_policy=NO_CACHE, persist_result=False)
def publish_results(output: OutputDirectory) -> str:
    """Decide from the scores of all seeds, write results and report, and return what they say in one sentence."""
    results = collect_results(output)
    report = write_report(output.path)
    _show(results, report)
    return describe_f1(results)


def describe_f1(results: Results) -> str:
    """Say in one sentence how the default detector scores."""
    f1 = ", ".join(f"{scenario} {'-' if value is None else f'{value:.4f}'}" for scenario, value in results.f1.items())
    return f"{results.detector.name}: F1 {f1}" if f1 else f"{results.detector.name}: no test scenario"


def _show(results: Results, report: Path) -> None:
    """Put the scores and the way to the report into the Prefect UI."""
    header, rows = results_table(results)
    create_markdown_artifact(
        f"# {results.detector.name}\n\n{results.detector.rule}\n\n{_markdown(header, rows)}\n",
        key="scores",
        description="the default detector on every test scenario",
    )
    header, rows = models_table(results)
    create_table_artifact(
        [dict(zip(header, row, strict=True)) for row in rows], key="models", description="F1 of every model"
    )
    compared = [row for row in rows if row[0] in COMPARED]
    if len(compared) > 1:
        create_table_artifact(
            [dict(zip(header, row, strict=True)) for row in compared],
            key="autoencoder-and-gat",
            description="the autoencoder, the attention network without and with a curriculum, side by side (F1)",
        )
    create_link_artifact(report.absolute().as_uri(), link_text=str(report), key="report", description="HTML report")


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
