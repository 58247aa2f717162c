"""Write the report of a run, whatever its family."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kdgat.base import UserError, write_bytes_atomically
from kdgat.family.protocol import Family
from kdgat.family.registry import find_family
from kdgat.report import Document, RunContent, provenance, training
from kdgat.report.consumption import with_consumption
from kdgat.report.content import read_run, read_stage
from kdgat.report.document import render_document
from kdgat.run import OutputDirectory, StageState
from kdgat.run.attempts import begun
from kdgat.run.directory import DONE_STATES
from kdgat.run.results import RunResults

REFRESH_S: Final = 10  # between two looks at a run that goes on


def write_report(run_directory: Path | str) -> Path:
    """Write report.html into the output directory of a run and return its path.

    Raises:
        UserError: if the directory is no run.
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
    """Read a run, finished or not, and return its report to be written in one form or another; errors as above."""
    family = find_family(family_of(output))
    if not output.results_path.is_file():
        return _unfinished(family, output)
    content = read_run(output.path, family.results.read)
    results, path = content.results, shlex.quote(str(output.path))
    seeds = f"seed{'s' if len(results.seeds) != 1 else ''} {', '.join(map(str, results.seeds))}"
    evaluated = f"Evaluated {results.created.replace('T', ' ')}, preset {results.preset or 'not stated'}"
    document = family.report(content)
    return replace(
        with_consumption(document, content.stages),
        notice=content.notice,
        origin=f"{evaluated}, code {content.revision or 'unknown'}, {seeds}",
        conclusions=family.conclusions(results),
        commands={
            **document.commands,
            "Every table, in the terminal": f"kdgat runs show {path} --tables",
            "Compare it with another run": f"kdgat runs compare {path} OTHER",
        },
    )


def _unfinished(family: Family, output: OutputDirectory) -> Document:
    """Return what the stages have logged so far."""
    index = output.read_index()
    stages = [read_stage(output, record, []) for record in index.stages]
    states = [f"{stage.name} is {stage.state}" for stage in index.stages if stage.state not in DONE_STATES]
    curves = training.curves_by_stage(stages, lambda record, fit: ", ".join(filter(None, (record.stage, fit))))
    shown = training.training_section(curves, "One line per seed. The star marks the best epoch so far.")
    shown.is_open = True
    document = Document(
        title=f"{family.title[:1].upper()}{family.title[1:]}: no results yet",
        sections=[*([shown] if curves else []), provenance(RunContent[Any](output.path, None, index, stages))],
        origin=f"Begun {begun(output, index).replace('T', ' ')}",
        conclusions=[f"{len(index.stages) - len(states)} of {len(index.stages)} stages are done."],
        facts={"Now": "; ".join(states[:8]) or "all stages are done"},
    )
    return with_consumption(document, stages)


def refresh_s(run_directory: Path | str) -> int:
    """Return after how many seconds a browser asks again for the report of a run that goes on; 0 for another."""
    output = OutputDirectory(run_directory)
    stages = output.read_index().stages if output.index_path.is_file() else []
    return REFRESH_S if any(record.state == StageState.RUNNING for record in stages) else 0


def renew_report(run_directory: Path | str, last_s: int) -> int:
    """Write the report of a run that goes on, or did at the last look, and return its `refresh_s`."""
    next_s = refresh_s(run_directory)  # before it is written: an end in between is seen at the next look
    if last_s or next_s:
        write_report(run_directory)
    return next_s


def write_document(output: OutputDirectory, document: Document) -> Path:
    """Write a report as report.html into the directory of its run, for who may read that, and return its path."""
    of_run = output.index_path if output.index_path.is_file() else output.results_path
    mode = of_run.stat().st_mode & 0o666
    write_bytes_atomically(output.report_path, render_document(document).encode("utf-8"), mode=mode)
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
