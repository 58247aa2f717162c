"""What a finished run hands to people: `results.json`, the report, and the artifacts in the Prefect UI."""

from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.shown_attempts import api_may_fail
from kdgat.family.registry import find_family
from kdgat.family.report import write_report
from kdgat.run.directory import OutputDirectory
from kdgat.run.table import Table


@task(name="results", task_run_name="results", cache_policy=NO_CACHE, persist_result=False)
def publish_results(family_name: str, output: OutputDirectory) -> str:
    """Summarise what all evaluations measured, write results and report, and return the conclusions in one line."""
    family = find_family(family_name)
    results = family.collect(output)
    report = write_report(output.path)
    conclusions = family.conclusions(results)
    with api_may_fail("results"):
        for table in family.tables(results):
            if table.key:
                publish_table(table)
        create_markdown_artifact(
            "\n".join(f"* {sentence}" for sentence in conclusions) + "\n",
            key="conclusions",
            description=f"what the evaluation says of {family.title}",
        )
        publish_report(report)
    return "; ".join(conclusions)


def publish_table(table: Table, key: str = "") -> None:
    """Put a table into the Prefect UI, under its own key or another one."""
    header, rows = table.texts
    create_table_artifact(
        [dict(zip(header, row, strict=True)) for row in rows], key=key or table.key, description=table.caption
    )


def publish_report(report: Path) -> None:
    """Put the way to the report into the Prefect UI."""
    create_link_artifact(report.absolute().as_uri(), link_text=str(report), key="report", description="HTML report")
