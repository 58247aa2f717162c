"""Assemble the report of a LAP run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kdgat.lap.names import EVALUATION, PREPARE
from kdgat.lap.results import (
    Group,
    Kind,
    LapResults,
    MethodSummary,
    format_number,
    format_share,
    read_results,
    results_table,
)
from kdgat.report import lap_figures, tables, training
from kdgat.report.document import Section, provenance, render_document
from kdgat.report.run import DONE, ReportError, StageContent, read_stage
from kdgat.report.tables import Cell, Table
from kdgat.run.directory import OutputDirectory, RunIndex
from kdgat.stage.files import write_bytes_atomically

TEMPLATE = "lap.html"
COLUMNS = (
    ("Duals' gap left", "dual gap of the method's duals before the solver, as a share of that of the column minima"),
    ("R² of u", "of the row duals against the label's, both centred, as only differences mean anything"),
    ("Error of u", "mean absolute error of the same, in units of the instance's scale: how far a row's eighth cheapest "
     "entry lies above its cheapest"),
    ("Matched greedily", "share of rows matched on tight edges before any search"),
    ("Searches", "shortest-path searches (augmentations) that were left"),
    ("Entries scanned", "entries of the matrix looked at in the searches"),
    ("Taken", "share of instances on which these duals had the best bound; otherwise the solver took minima"),
    ("Duals ms", "median milliseconds for making the duals: features and inference, or the rule"),
    ("Total ms", "median milliseconds for everything: duals, their choice, search, and the proof of optimality"),
    ("Times scipy", "median over instances of scipy's time divided by this one; its range below"),
)  # fmt: skip


@dataclass(frozen=True)
class LapRunContent:
    """What is in the output directory; `missing` names in words what is not."""

    path: Path
    results: LapResults
    index: RunIndex | None
    stages: list[StageContent]
    missing: list[str] = field(default_factory=list)


def write_report(run_directory: Path) -> Path:
    """Write report.html into the output directory of a LAP run and return its path.

    Raises:
        ReportError: if the directory is no run or has no results.
        ResultsError: if the results are damaged.
    """
    content = read_run(Path(run_directory))
    path = OutputDirectory(content.path).report_path
    write_bytes_atomically(path, render(content).encode("utf-8"))
    return path


def read_run(path: Path) -> LapRunContent:
    """Read a run; ReportError if the directory is none or has no results yet."""
    output = OutputDirectory(path)
    if not output.path.is_dir():
        raise ReportError(f"{path} is not a directory; give the directory that was --out of `kdgat train lap`")
    index = output.read_index() if output.index_path.is_file() else None
    if not output.results_path.is_file():
        waiting = (
            [f"{stage.name} is {stage.state}" for stage in index.stages if stage.state not in DONE] if index else []
        )
        raise ReportError(
            f"{path} has no {output.results_path.name} yet ({'; '.join(waiting) or 'all stages done'});"
            " run `kdgat train lap` with this --out to its end"
        )
    missing: list[str] = []
    if index is None:
        missing.append("run.json: without it neither training curves nor the provenance of stages are shown.")
    stages = [
        read_stage(output, record, missing, has_epochs=record.stage not in (PREPARE, EVALUATION))
        for record in (index.stages if index else [])
    ]
    return LapRunContent(output.path, read_results(output.results_path), index, stages, missing)


def render(content: LapRunContent) -> str:
    """Return the page as HTML."""
    results, missing = content.results, list(content.missing)
    for name, version in results.machine.versions.items():
        if version == "not installed":
            missing.append(f"{name} was not installed where the evaluation ran: it is not compared.")
    sections = [
        _comparison(results),
        _duals(results),
        _times(results),
        _tables(results),
        _training(content, missing),
        _provenance(content),
    ]
    return render_document(
        TEMPLATE,
        sections,
        missing,
        results=results,
        revision=(results.revision or "")[:10],
        cards=_cards(results),
        model=_model(results),
        correctness=_correctness(results),
        machine=_machine(results),
    )


def _cards(results: LapResults) -> list[dict[str, str]]:
    cards = []
    for family in results.families:
        group = [group for group in results.groups if group.family == family][-1]
        verdict = group.verdict
        cards.append(
            {
                "name": f"{family}, n = {group.size:,}",
                "ratio": "-" if verdict is None else format_number(verdict.ratio, 2),
                "unit": "" if verdict is None else "times as fast",
                "against": "no trained model was timed"
                if verdict is None
                else f"as the best untrained seed ({verdict.untrained})",
                "scipy": ""
                if verdict is None or verdict.times_scipy is None
                else f"{verdict.times_scipy:.1f} times as fast as scipy",
            }
        )
    return cards


def _model(results: LapResults) -> str:
    if results.final_method is None:
        return "None was evaluated."
    count = results.parameter_counts.get(results.final_method)
    size = "" if count is None else f", {count:,} parameters"
    return f"{results.final_method}{size}: the weights of the last training stage, whatever its test results."


def _correctness(results: LapResults) -> str:
    count = sum(group.num_checked for group in results.groups)
    return (
        f"{count:,} test instances solved; every assignment was checked entry by entry against the label's cost, and"
        " every label against the bound that its own duals prove. A single wrong one would have stopped the run."
    )


def _machine(results: LapResults) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.processor}, {machine.num_cores} cores, {machine.num_threads} used; {versions}. Methods took turns on"
        " each instance in one process: ratios mean more than milliseconds, counters more than either."
    )


def _comparison(results: LapResults) -> Section:
    section = Section("comparison", "Does training pay?")
    section.paragraphs.append(
        "The best untrained seed is the fastest of all untrained ones on the same instances, chosen afterwards, so the"
        " trained model is compared with the strongest opponent. Times include everything: features, inference, the"
        " choice among seeds, the search and the proof of optimality."
    )
    header, rows = results_table(results)
    section.tables.append(
        Table(
            [Cell(text) for text in header],
            [[Cell(text) for text in row] for row in rows],
            "One row per family and size. Gap left: of the trained model's duals, column minima being 100 %."
            " Augmentations: best untrained seed → trained model. Times untrained: how many times as fast as the best"
            " untrained seed the trained model is, and what optimal duals for nothing (the oracle) would be.",
        )
    )
    section.paragraphs += list(results.conclusions.values())
    picture = lap_figures.seed_ratios(results)
    if picture is not None:
        section.pictures[""] = [picture]
    return section


def _duals(results: LapResults) -> Section:
    section = Section("duals", "What the duals are worth")
    section.paragraphs.append(
        "Independent of any machine: the part of the dual gap that a seed leaves to the solver. Optimal duals leave"
        " nothing; column minima, which cost one pass over the matrix, leave all of it."
    )
    pictures = [lap_figures.gaps(results, size) for size in reversed(results.sizes)]
    section.pictures[""] = [picture for picture in pictures if picture is not None]
    return section


def _times(results: LapResults) -> Section:
    section = Section("times", "Milliseconds")
    section.paragraphs.append(
        "Medians on one processor core. The diamond is the oracle: our solver started from optimal duals, for which"
        " nobody had to pay. No warm start can be faster than that."
    )
    pictures = [lap_figures.times(results, size) for size in reversed(results.sizes)]
    section.pictures[""] = [picture for picture in pictures if picture is not None]
    grown = [lap_figures.growth(results, family) for family in results.families]
    section.pictures["Growth with n"] = [picture for picture in grown if picture is not None]
    return section


def _tables(results: LapResults) -> Section:
    section = Section("methods", "Every method")
    section.paragraphs.append("Means over instances for counters, medians for times.")
    for size in reversed(results.sizes):
        found = [_group_table(group, results) for group in results.groups if group.size == size]
        if size == results.sizes[-1]:
            section.tables += found
        else:
            section.folded[f"n = {size:,}"] = found
    section.folded_text["What the columns mean"] = "\n".join(f"{name}: {meaning}" for name, meaning in COLUMNS)
    return section


def _group_table(group: Group, results: LapResults) -> Table:
    fastest = min(
        (method.milliseconds for method in group.methods if method.milliseconds and method.kind is not Kind.ORACLE),
        default=None,
    )
    rows = [_method_cells(method, method.milliseconds == fastest) for method in group.methods]
    header = [Cell("Method"), *(Cell(name) for name, _ in COLUMNS)]
    timed = max((method.num_timed for method in group.methods), default=0)
    caption = f"{group.family}, n = {group.size:,}: {timed} timed, {group.num_checked:,} checked. In bold: the fastest."
    if group.verdict is not None:
        caption += f" {group.verdict.sentence[0].upper()}{group.verdict.sentence[1:]}."
    return Table(header, rows, caption)


def _method_cells(method: MethodSummary, is_fastest: bool) -> list[Cell]:
    reach = method.times_scipy_range
    scanned = method.scanned_entries
    return [
        Cell(lap_figures.label_of(method)),
        Cell(format_share(method.gap_share)),
        Cell(format_number(method.u_r2, 3)),
        Cell(format_number(method.u_mae, 3)),
        Cell(format_share(method.greedy_share)),
        Cell(format_number(method.augmentations, 0)),
        Cell("-" if scanned is None else f"{scanned / 1e6:,.2f} M"),
        Cell("-" if method.own_seed_share is None else f"{method.own_seed_share:.0%}"),
        Cell(format_number(method.seed_milliseconds)),
        Cell(format_number(method.milliseconds), is_best=is_fastest),
        Cell(
            format_number(method.times_scipy, 2),
            note="" if reach is None or method.name == "scipy" else f"{reach[0]:.2f} to {reach[1]:.2f}",
        ),
    ]


def _training(content: LapRunContent, missing: list[str]) -> Section:
    section = Section("training", "Training")
    section.paragraphs.append(
        "Each stage starts from the weights of the one before. One line per seed; the star marks the epoch whose"
        " weights are handed on. Click a legend entry to show or hide its lines."
    )
    by_stage: dict[str, dict[int, training.Curve]] = {}
    for stage in content.stages:
        for fit, curve in stage.curves.items():
            if any(name.endswith("loss") for name in curve):
                by_stage.setdefault(fit or stage.record.stage, {})[stage.record.seed] = curve
    if not by_stage:
        missing.append("No training curves in the stage directories.")
    for name, seeds in by_stage.items():
        pictures = [training.losses(name, seeds), training.logged_shares(name, seeds)]
        section.pictures[name] = [picture for picture in pictures if picture is not None]
    return section


def _provenance(content: LapRunContent) -> Section:
    results, index = content.results, content.index
    return provenance(
        results.created,
        results.preset,
        (results.revision or "")[:10],
        results.seeds,
        tables.stage_table(content.stages),
        None if index is None else index.config,
    )
