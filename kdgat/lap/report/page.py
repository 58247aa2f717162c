"""Assemble the report of a LAP run."""

from __future__ import annotations

import shlex

from kdgat.lap.evaluation.results import Group, Kind, LapResults, MethodSummary, format_number, format_share
from kdgat.lap.evaluation.tables import comparison_table, format_millions, results_table
from kdgat.lap.report import figures
from kdgat.report import Document, RunContent, Section, provenance, training
from kdgat.report.document import drawn
from kdgat.run import Table
from kdgat.run.table import Cell

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


def document(content: RunContent[LapResults]) -> Document:
    """Return the report of a run."""
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
        provenance(content),
    ]
    return Document(
        title="Learned warm starts for linear assignment",
        sections=sections,
        missing=missing,
        answer=[comparison_table(results)],
        commands={"Use it": f"kdgat lap solve COSTS --model {shlex.quote(str(content.path))}"},
        facts={"Model": _model(results), "Correctness": _correctness(results), "Machine": _machine(results)},
    )


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
    paragraph = (
        "The best untrained seed is the fastest of all untrained ones on the same instances, chosen afterwards, so the"
        " trained model is compared with the strongest opponent. Times include everything: features, inference, the"
        " choice among seeds, the search and the proof of optimality."
    )
    pictures = drawn({"": [figures.seed_ratios(results)]})
    return Section("comparison", "Does training pay?", [paragraph], [results_table(results)], pictures, is_open=True)


def _duals(results: LapResults) -> Section:
    paragraph = (
        "Independent of any machine: the part of the dual gap that a seed leaves to the solver. Optimal duals leave"
        " nothing; column minima, which cost one pass over the matrix, leave all of it."
    )
    pictures = drawn({"": [figures.gaps(results, size) for size in reversed(results.sizes)]})
    return Section("duals", "What the duals are worth", [paragraph], pictures=pictures)


def _times(results: LapResults) -> Section:
    paragraph = (
        "Medians on one processor core. The diamond is the oracle: our solver started from optimal duals, for which"
        " nobody had to pay. No warm start can be faster than that."
    )
    found = {"": [figures.times(results, size) for size in reversed(results.sizes)]}
    found["Growth with n"] = [figures.growth(results, family) for family in results.families]
    return Section("times", "Milliseconds", [paragraph], pictures=drawn(found))


def _tables(results: LapResults) -> Section:
    section = Section("methods", "Every method", ["Means over instances for counters, medians for times."])
    for size in reversed(results.sizes):
        found = [_group_table(group) for group in results.groups if group.size == size]
        if size == results.sizes[-1]:
            section.tables += found
        else:
            section.folded[f"n = {size:,}"] = found
    section.folded_text["What the columns mean"] = "\n".join(f"{name}: {meaning}" for name, meaning in COLUMNS)
    return section


def _group_table(group: Group) -> Table:
    fastest = min(
        (method.milliseconds for method in group.methods if method.milliseconds and method.kind is not Kind.ORACLE),
        default=None,
    )
    rows = [_method_cells(method, method.milliseconds == fastest) for method in group.methods]
    header = ["Method", *(name for name, _ in COLUMNS)]
    timed = max((method.num_timed for method in group.methods), default=0)
    caption = f"{group.family}, n = {group.size:,}: {timed} timed, {group.num_checked:,} checked. In bold: the fastest."
    if group.verdict is not None:
        caption += f" {group.verdict.sentence[0].upper()}{group.verdict.sentence[1:]}."
    return Table.of(header, rows, caption)


def _method_cells(method: MethodSummary, is_fastest: bool) -> list[str | Cell]:
    reach = method.times_scipy_range
    note = "" if reach is None or method.name == "scipy" else f"{reach[0]:.2f} to {reach[1]:.2f}"
    return [
        figures.label_of(method),
        format_share(method.gap_share),
        format_number(method.u_r2, 3),
        format_number(method.u_mae, 3),
        format_share(method.greedy_share),
        format_number(method.augmentations, 0),
        format_millions(method.scanned_entries),
        "-" if method.own_seed_share is None else f"{method.own_seed_share:.0%}",
        format_number(method.seed_milliseconds),
        Cell(format_number(method.milliseconds), is_best=is_fastest),
        Cell(format_number(method.times_scipy, 2), note),
    ]


def _training(content: RunContent[LapResults], missing: list[str]) -> Section:
    by_stage = training.curves_by_stage(content.stages, lambda record, fit: fit or record.stage)
    if not by_stage:
        missing.append("No training curves in the stage directories.")
    return training.training_section(
        by_stage,
        "Each stage starts from the weights of the one before. One line per seed; the star marks the epoch whose"
        " weights are handed on. Click a legend entry to show or hide its lines.",
    )
