"""Write the report of a run, whatever its family."""

import json
from dataclasses import replace
from pathlib import Path

from kdgat.base import UserError, write_bytes_atomically
from kdgat.family.registry import find_family
from kdgat.report import Document
from kdgat.report.consumption import with_consumption
from kdgat.report.content import read_run
from kdgat.report.document import render_document
from kdgat.run import OutputDirectory
from kdgat.run.results import RunResults


def write_report(run_directory: Path | str) -> Path:
    """Write report.html into the output directory of a run and return its path.

    Raises:
        UserError: if the directory is no run or has no results.
        RunError, or another ValueError of the family: if a file is damaged.
    """
    output = OutputDirectory(run_directory)
    return write_document(output, compose_report(output))


def write_results(output: OutputDirectory) -> tuple[RunResults, Document]:
    """Write results.json and report.html of a run whose evaluations have ended, and return both."""
    results = find_family(family_of(output)).collect(output)
    document = compose_report(output)
    write_document(output, document)
    return results, document


def compose_report(output: OutputDirectory) -> Document:
    """Read a run and return its report, to be written in one form or another; errors as of `write_report`."""
    family = find_family(family_of(output))
    content = read_run(output.path, family.results.read)
    return replace(with_consumption(family.report(content), content.stages), notice=content.notice)


def write_document(output: OutputDirectory, document: Document) -> Path:
    """Write a report as report.html into the output directory of its run and return its path."""
    write_bytes_atomically(output.report_path, render_document(document).encode("utf-8"))
    return output.report_path


def family_of(output: OutputDirectory) -> str:
    """Return the family of a run: as run.json has it, else results.json; UserError where neither does."""
    for path in (output.index_path, output.results_path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            continue
        if isinstance(content, dict) and "family" in content:
            return str(content["family"])
    if not output.path.is_dir():
        raise UserError(f"{output.path} is not a directory; give the directory that was --out of `kdgat train`")
    raise UserError(
        f"{output.path}: neither {output.index_path.name} nor {output.results_path.name} there says of which family "
        "the run is; give the directory that was --out of `kdgat train`"
    )
