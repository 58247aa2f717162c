"""What a finished run hands to people: `results.json`, the report, and the artifacts in the Prefect UI."""

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.naming import artifact_key
from flows.shown_attempts import api_may_fail
from kdgat.family import find_family
from kdgat.family.report import write_results
from kdgat.report.markdown import as_markdown
from kdgat.report.serving import copy_command, serve_command
from kdgat.run import OutputDirectory, Table


@task(name="results", task_run_name="results", cache_policy=NO_CACHE, retries=0, persist_result=False)
def publish_results(family_name: str, output: OutputDirectory, scope: str) -> str:
    """Summarise what all evaluations measured, write results and report, and return the conclusions in one line.

    Keys of artifacts end with `scope`, so that those of two datasets do not mix.
    """
    family = find_family(family_name)
    results, document = write_results(output)
    conclusions = family.conclusions(results)
    tables = [table for table in family.tables(results) if table.key]
    with api_may_fail("results"):
        for table in tables:
            publish_table(table, artifact_key(table.key.removeprefix(f"{family.name}-"), scope))
        create_markdown_artifact(
            as_markdown(document, conclusions, tables, _whole_report(output)),
            key=artifact_key("report", scope),
            description=f"Key figures and curves of {output.path}",
        )
    return "; ".join(conclusions)


def publish_table(table: Table, key: str) -> None:
    """Put a table into the Prefect UI."""
    header, rows = table.texts
    create_table_artifact([dict(zip(header, row, strict=True)) for row in rows], key=key, description=table.caption)


def _whole_report(output: OutputDirectory) -> str:
    """Write how the report is read where its file is not: a browser follows no link from this page to a file."""
    report = output.report_path
    return f"""## The whole report

It is one page, `{report.absolute()}`. Copy it to the machine of your browser:

```sh
{copy_command(report)}
```

or let it be served from there, and open the address that this prints:

```sh
{serve_command(output.path)}
```"""
