"""Assemble the report of a CAN run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kdgat.can.results import Results, format_spread, format_value
from kdgat.report import figures, tables, timeline, training
from kdgat.report.document import Section, as_yaml, provenance, render_document
from kdgat.report.run import RunContent, read_run
from kdgat.run.directory import OutputDirectory
from kdgat.stage.files import write_bytes_atomically

TEMPLATE = "can.html"
MAX_RECORDINGS_DRAWN = 60  # in all scenarios together, so that the page stays small
MAX_BAD_ROWS = 20


def write_report(run_directory: Path) -> Path:
    """Write report.html into the output directory of a run and return its path.

    Raises ReportError if the directory is no run or has no results, ResultsError or ScoresError if a file is damaged.
    """
    content = read_run(Path(run_directory))
    path = OutputDirectory(content.path).report_path
    write_bytes_atomically(path, render(content).encode("utf-8"))
    return path


def render(content: RunContent) -> str:
    """Return the page as HTML."""
    results, missing = content.results, list(content.missing)
    sections = [
        _scenarios(results),
        _models(results, missing),
        _curves(results, missing),
        _confusion(results),
        _recordings(content, missing),
        _training(content, missing),
        _injection(results, missing),
        _data(results, missing),
        _provenance(content),
    ]
    return render_document(
        TEMPLATE,
        sections,
        missing,
        results=results,
        detector=results.detector,
        revision=_revision(content),
        cards=_cards(results),
    )


def _cards(results: Results) -> list[dict[str, str]]:
    cards = []
    for name, scenario in results.scenarios.items():
        over = scenario.over_seeds.get("f1")
        cards.append(
            {
                "name": name,
                "f1": format_value(scenario.f1) if scenario.f1 is not None else "no attack",
                "seeds": f"single seeds {format_spread(over)}" if over is not None and over.std is not None else "",
                "alarms": f"false alarms {_percent(scenario.false_alarm_rate)} of benign windows",
            }
        )
    return cards


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _scenarios(results: Results) -> Section:
    section = Section("scenarios", "Test scenarios")
    section.paragraphs.append(
        "The default detector on windows it has never seen, pooled over the recordings of each scenario. A value that"
        " the data cannot define is shown as a dash: without attacks there is no recall."
    )
    section.tables += tables.metrics_tables("Scenario", results.scenarios, "Default detector.")
    section.folded_text["What the columns mean"] = tables.meanings()
    seeds = tables.seeds_table(results)
    if seeds is not None:
        section.tables.append(seeds)
    section.pictures[""] = [figures.scenario_bars(results.scenarios)]
    for name, scenario in results.scenarios.items():
        if scenario.recordings:
            caption = f"Recordings of {name}, default detector."
            heading = f"{name}: {_number(len(scenario.recordings), 'recording')}"
            section.folded[heading] = tables.metrics_tables("Recording", scenario.recordings, caption)
    return section


def _models(results: Results, missing: list[str]) -> Section:
    section = Section("models", "Models side by side")
    if not results.models:
        missing.append("results.json has no models: the autoencoder, GAT, curriculum and fusion cannot be compared.")
        section.paragraphs.append("Not in results.json.")
    else:
        section.paragraphs.append(
            "The graph autoencoder (VGAE), the plain GAT, the GAT trained with a curriculum, the two distilled students"
            " and the fusions, each as one model per seed on the same windows."
        )
        section.tables += tables.comparison_tables(results)
        pictures = [
            figures.model_comparison(scenario, figures.spreads_of_models(results.models, scenario))
            for scenario in results.scenarios
        ]
        section.pictures[""] = [picture for picture in pictures if picture is not None]
        for scenario, found in tables.model_tables(results).items():
            section.folded[f"{scenario}: every model and seed"] = found
    if not results.parameter_counts:
        missing.append("results.json has no parameter counts.")
    parameters = tables.parameter_table(results)
    if parameters is not None:
        section.tables.append(parameters)
    return section


def _curves(results: Results, missing: list[str]) -> Section:
    section = Section("curves", "ROC and precision-recall")
    section.paragraphs.append(
        "False-positive rate on a logarithmic axis, detection rate spaced by its distance from 1: a detector that is"
        " wrong on one window in a hundred is of no use on a bus with thousands of messages a second. The circle marks"
        " the threshold in use."
    )
    for name, scenario in results.scenarios.items():
        by_model = {model: rows[name] for model, rows in results.curves.items() if name in rows}
        drawn = [
            picture
            for picture in (
                figures.roc(name, by_model, scenario),
                figures.precision_recall(name, by_model, scenario),
            )
            if picture is not None
        ]
        section.pictures[name] = drawn
        if not drawn and scenario.f1 is not None:
            missing.append(f"results.json has no curves of {name}.")
        elif not drawn:
            section.paragraphs.append(f"{name} has no attack, hence no curve.")
    return section


def _confusion(results: Results) -> Section:
    section = Section("confusion", "Confusion matrices")
    section.paragraphs.append("Counts of windows of the default detector, and their share of the true class.")
    section.pictures[""] = [figures.confusion_matrix(name, scenario) for name, scenario in results.scenarios.items()]
    return section


def _recordings(content: RunContent, missing: list[str]) -> Section:
    section = Section("recordings", "Scores along the recordings")
    section.paragraphs.append(
        "Attack probability of every window on a log-odds axis, so that what happens near 0 and 1 can be seen. Shaded:"
        " windows with attack messages. Drag to zoom in, double click to zoom out."
    )
    left = MAX_RECORDINGS_DRAWN
    for number, (scenario, scores) in enumerate(content.scores.items()):
        decided = timeline.decisions(scores, content.results.detector.decision)
        present = np.unique(scores.recording).tolist()
        # Every scenario gets its share before one with many recordings takes all.
        share = max(1, left // (len(content.scores) - number))
        section.pictures[scenario] = [
            timeline.score_along_recording(scores, index, decided, content.results.detector.decision)
            for index in present[:share]
        ]
        left -= min(share, len(present))
        if len(present) > share:
            names = ", ".join(scores.recording_names[index] for index in present[share:])
            missing.append(f"Scores along these recordings of {scenario}, to keep the page small: {names}.")
    if not content.scores:
        section.paragraphs.append("There are no score files.")
    return section


def _training(content: RunContent, missing: list[str]) -> Section:
    section = Section("training", "Training")
    section.paragraphs.append(
        "One line per seed. The star marks the epoch whose weights are handed on. Click a legend entry to show or hide"
        " its lines."
    )
    by_stage = training.curves_by_stage(content.stages, content.results)
    if not by_stage:
        missing.append("No training curves, neither in results.json nor in the stage directories.")
    for stage, seeds in by_stage.items():
        pictures = [
            training.losses(stage, seeds),
            training.curriculum(stage, seeds),
            training.logged_shares(stage, seeds),
        ]
        section.pictures[stage] = [picture for picture in pictures if picture is not None]
    return section


def _injection(results: Results, missing: list[str]) -> Section:
    section = Section("injection", "Injected attacks")
    injection = results.injection
    if injection is None:
        missing.append("results.json does not say which attacks were injected for training.")
        section.paragraphs.append("Not in results.json.")
        return section
    if not injection.enabled:
        section.paragraphs.append("No attacks were injected: the models learned from recorded attacks alone.")
        return section
    section.paragraphs.append(
        "So that unknown attacks on unknown cars are found, attacks were injected into benign traffic of"
        f" {injection.num_virtual_vehicles:,} virtual vehicles made from the training recordings"
        f" (seed {injection.seed}): {injection.num_windows:,} windows, {injection.num_attack_windows:,} of them under"
        " attack. Test recordings take no part in it."
    )
    table = tables.injection_table(injection)
    if table is not None:
        section.tables.append(table)
    picture = figures.injected_attacks(injection)
    if picture is not None:
        section.pictures[""] = [picture]
    if injection.diversity:
        changes = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in injection.diversity.items())
        section.paragraphs.append(f"Virtual vehicles by the benign changes they got: {changes}.")
    return section


def _data(results: Results, missing: list[str]) -> Section:
    section = Section("data", "Data")
    data = results.data
    section.paragraphs.append(
        f"{results.dataset}: {data.num_messages:,} messages, {data.num_windows:,} windows,"
        f" {data.num_attack_windows:,} of them with attack messages."
        f" {_number(data.num_dropped_duplicates, 'recording')} left out, because another one has the same messages."
        f" {_number(data.num_bad_rows, 'bad row')}."
    )
    section.paragraphs += data.notes
    for table in (tables.split_table(data), tables.recording_table(data)):
        if table is not None:
            section.tables.append(table)
    if not data.recordings:
        missing.append("results.json does not list the recordings.")
    if data.bad_rows:
        rows = data.bad_rows[:MAX_BAD_ROWS]
        section.folded_text[f"The first {len(rows)} bad rows"] = "\n".join(rows)
    if data.window:
        section.folded_text["Window parameters"] = as_yaml(data.window)
    return section


def _provenance(content: RunContent) -> Section:
    results, index = content.results, content.index
    section = provenance(
        results.created,
        results.preset,
        _revision(content),
        results.seeds,
        tables.stage_table(content.stages),
        None if index is None else index.config,
    )
    section.folded_text["Decision rule of the default detector"] = as_yaml(
        json.loads(results.detector.decision.model_dump_json())
    )
    return section


def _revision(content: RunContent) -> str:
    """Return the revision of the results, or those that the stages ran with; empty if neither is known."""
    if content.results.revision:
        return content.results.revision[:10]
    found = [attempt.get("git") for stage in content.stages for attempt in stage.attempts]
    names = [git["revision"][:10] + (" with changes" if git.get("dirty") else "") for git in found if git]
    return ", ".join(dict.fromkeys(names))
