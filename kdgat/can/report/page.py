"""Assemble the report of a CAN run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

import numpy as np

from kdgat.can.evaluation.costs import COSTS_FILE
from kdgat.can.evaluation.results import DetectorDescription, Results
from kdgat.can.evaluation.scores import Scores, read_scores, scores_path
from kdgat.can.evaluation.tables import (
    hidden_table,
    kinds_table,
    summary_table,
    vehicles_table,
)
from kdgat.can.report import figures, tables, timeline
from kdgat.can.report.names import described, model_name
from kdgat.can.report.sections import embeddings, explanations
from kdgat.canbus.catalog import DatasetEntry, load_catalog
from kdgat.report import Document, RunContent, Section, provenance, training
from kdgat.report.document import as_yaml, drawn
from kdgat.run import StageRecord, counted
from kdgat.run.finished import Curve

MAX_RECORDINGS_DRAWN = 24  # in all scenarios together, so that the page stays small
MAX_BAD_ROWS = 20


def document(content: RunContent[Results]) -> Document:
    """Return the report of a run; UserError if a file of scores is damaged."""
    results, missing = content.results, list(content.missing)
    sections = [
        *(_tested(content, missing) if results.scenarios else _untested(content, missing)),
        embeddings(content.path, _vehicle_names(content), missing),
        _training(content, missing),
        _injection(results, missing),
        _data(results, missing),
        _provenance(content),
    ]
    detector = results.detector
    return Document(
        title=f"CAN intrusion detection on {results.dataset}",
        answer=[summary_table(results)] if results.scenarios else [],
        sections=sections,
        missing=missing,
        facts={
            "Data": f"{results.data.num_windows:,} windows of {results.data.num_messages:,} messages,"
            f" {results.data.num_attack_windows:,} of them with attack messages.",
            "Detector": _detector_words(detector),
            "Decision rule": f"{detector.rule} It uses no test labels.",
            "Benign windows in alarm on validation": detector.false_alarm_rate.sentence
            if detector.false_alarm_rate
            else "Not stated: there were no benign validation windows.",
        },
        commands={
            "Use it on a recording": f"kdgat detect RECORDING --model {shlex.quote(str(content.path))}"
            f" --detector {detector.model}"
        },
    )


def _detector_words(detector: DetectorDescription) -> str:
    """Name the default detector, what it is made of where its name does not tell, and its seeds."""
    made_of = []
    for model in detector.models:
        name, _, parts = model.removesuffix(")").partition(" (")
        is_named = name in re.split(r"[ ,]+", detector.name)  # already: what it is made of is news alone
        made_of += [parts if is_named else model] if parts or not is_named else []
    seeds = f"seed{'s' if len(detector.seeds) != 1 else ''} {', '.join(map(str, detector.seeds))}"
    return f"{detector.name} ({'; '.join([*([', '.join(made_of)] if made_of else []), seeds])})"


def _tested(content: RunContent[Results], missing: list[str]) -> list[Section]:
    """Return what the scores on test recordings say."""
    results = content.results
    return [
        _hidden(results, missing),
        _scenarios(results),
        explanations(results, missing),
        _models(content, missing),
        _curves(results, missing),
        _recordings(content, missing),
    ]


def _untested(content: RunContent[Results], missing: list[str]) -> list[Section]:
    """Return what is known without test recordings; a heading over nothing would look as if something had failed."""
    models = Section("models", "Models")
    _add_sizes(models, content, missing)
    # Validation windows have such a table, too.
    sections = [_hidden(content.results, missing)] if hidden_table(content.results) is not None else []
    return [*sections, models] if models.tables else sections


def _read_scores(content: RunContent[Results], missing: list[str]) -> dict[str, Scores]:
    """Read the scores of each scenario's windows, and add to `missing` which are not there."""
    found = {}
    for scenario in content.results.scenarios:
        file = scores_path(content.path, scenario)
        if file.is_file():
            found[scenario] = read_scores(file)
        else:
            missing.append(f"{file.relative_to(content.path)}: no score along the recordings of {scenario}.")
    return found


def _scenarios(results: Results) -> Section:
    section = Section("scenarios", "Every metric of the detector")
    section.paragraphs.append(
        "The default detector on windows it has never seen, pooled over the recordings of each scenario. A value that"
        " the data cannot define is shown as a dash: without attacks there is no recall."
    )
    section.tables.append(tables.confusion_table(results.scenarios))
    section.tables += tables.metrics_tables("Scenario", results.scenarios, "Default detector.")
    section.folded_text["What the columns mean"] = tables.meanings()
    seeds = tables.seeds_table(results)
    if seeds is not None:
        section.tables.append(seeds)
    section.pictures[""] = [figures.scenario_bars(results.scenarios)]
    for name, scenario in results.scenarios.items():
        if scenario.recordings:
            caption = f"Recordings of {name}, default detector."
            heading = f"{name}: {counted(len(scenario.recordings), 'recording')}"
            section.folded[heading] = tables.metrics_tables("Recording", scenario.recordings, caption)
    return section


def _hidden(results: Results, missing: list[str]) -> Section:
    section = Section("hidden", "What hides behind F1", is_open=True)
    known = (hidden_table(results), vehicles_table(results), kinds_table(results))
    found = [table for table in known if table is not None]
    if not found:
        missing.append("results.json does not say how alarms spread over intensities, kinds and attacks.")
        section.paragraphs.append("Not in results.json.")
        return section
    section.paragraphs.append(
        "An attack of many messages is found more easily than a single message, which a recall over all windows does"
        " not show."
    )
    section.tables += found
    section.folded_text["What the columns mean"] = "\n".join(tables.HIDDEN_MEANINGS)
    rates = (results.detector.recorded_false_alarm_rate, results.detector.virtual_false_alarm_rate)
    section.paragraphs += [rate.sentence for rate in rates if rate is not None]
    if results.detector.profile is not None:
        section.paragraphs.append(f"The threshold is of a vehicle's own profile. {results.detector.profile}")
    return section


def _vehicle_names(content: RunContent[Results]) -> Callable[[str], str | None]:
    """Return what names the car of `<scenario>/<recording>`, as the catalog of the run has it."""
    data = {} if content.index is None else content.index.config.get("data", {})
    own = content.path / str(data.get("catalog"))  # an absolute path stays what it is
    entries = load_catalog(own if data.get("catalog") and own.is_file() else None)
    entry = entries.get(content.results.dataset, DatasetEntry.of_folder(content.results.dataset))
    return lambda title: entry.vehicle_of(title.partition("/")[2])


def _models(content: RunContent[Results], missing: list[str]) -> Section:
    results = content.results
    section = Section("models", "Models side by side")
    if not results.models:
        missing.append("results.json has no models: models cannot be compared.")
        section.paragraphs.append("Not in results.json.")
    else:
        section.paragraphs.append(
            f"{described(results.models)}. Each is one model per seed on the same windows. The habits and single"
            " features (baselines) are not trained; a model has to beat them."
        )
        section.tables += tables.comparison_tables(results)
        compared = figures.model_comparison
        spreads = {scenario: figures.spreads_of_models(results.models, scenario) for scenario in results.scenarios}
        section.pictures = drawn({"": [compared(scenario, found) for scenario, found in spreads.items()]})
        for scenario, found in tables.model_tables(results).items():
            section.folded[f"{scenario}: every model and seed"] = found
    _add_sizes(section, content, missing)
    return section


def _add_sizes(section: Section, content: RunContent[Results], missing: list[str]) -> None:
    """Add how large models are and how long they take."""
    results = content.results
    if not results.parameter_counts:
        missing.append("results.json has no parameter counts.")
    parameters = tables.parameter_table(results)
    if parameters is not None:
        section.tables.append(parameters)
    costs = tables.costs_table(content.path)
    if costs is None:
        missing.append(f"{COSTS_FILE}: neither size nor latency of the models.")
    else:
        section.tables.append(costs)


def _curves(results: Results, missing: list[str]) -> Section:
    section = Section("curves", "ROC curves")
    section.paragraphs.append(
        "False-positive rate on a logarithmic axis, detection rate spaced by its distance from 1: a detector that is"
        " wrong on one window in a hundred is of no use on a bus with thousands of messages a second. The circle marks"
        " the threshold in use. Curves and areas (AUC) are of the networks' scores alone; the default detector raises"
        " alarms of the habits of identifiers, too, so that its circle may lie beside its curve."
    )
    for name, scenario in results.scenarios.items():
        by_model = {model: rows[name] for model, rows in results.curves.items() if name in rows}
        found = [draw(name, by_model, scenario) for draw in (figures.roc, figures.precision_recall)]
        section.pictures |= drawn({name: found})
        if not section.pictures[name] and scenario.f1 is not None:
            missing.append(f"results.json has no curves of {name}.")
        elif not section.pictures[name]:
            section.paragraphs.append(f"{name} has no attack, hence no curve.")
    return section


def _recordings(content: RunContent[Results], missing: list[str]) -> Section:
    section = Section("recordings", "Scores over time")
    section.paragraphs.append(
        "Attack probability of every window on a log-odds axis, so that what happens near 0 and 1 can be seen. Shaded:"
        " windows with attack messages. Drag to zoom in, double click to zoom out."
    )
    left, by_scenario = MAX_RECORDINGS_DRAWN, _read_scores(content, missing)
    for number, (scenario, scores) in enumerate(by_scenario.items()):
        decided = timeline.decisions(scores, content.results.detector.decision)
        present = np.unique(scores.recording).tolist()
        # Every scenario gets its share before one with many recordings takes all.
        share = max(1, left // (len(by_scenario) - number))
        section.pictures[scenario] = [
            timeline.score_along_recording(scores, index, decided, content.results.detector.decision)
            for index in present[:share]
        ]
        left -= min(share, len(present))
        if len(present) > share:
            names = ", ".join(scores.recording_names[index] for index in present[share:])
            missing.append(f"Scores along these recordings of {scenario}, to keep the page small: {names}.")
    if not by_scenario:
        section.paragraphs.append("There are no score files.")
    return section


def _training(content: RunContent[Results], missing: list[str]) -> Section:
    by_stage: dict[str, training.Seeds] = dict(training.curves_by_stage(content.stages, _curve_name))
    by_stage = by_stage or _curves_of_results(content.results)
    if not by_stage:
        missing.append("No training curves, neither in results.json nor in the stage directories.")
    return training.training_section(
        by_stage,
        "One line per seed. The star marks the epoch whose weights are handed on. Click a legend entry to show or hide"
        " its lines.",
        figures.curriculum,
        lambda name, seeds: training.logged_shares(name, seeds, [figures.CURRICULUM_PREFIX]),
    )


def _curve_name(record: StageRecord, fit: str) -> str:
    return f"{model_name(record.stage)}, {record.scale}{f', {fit}' if fit else ''}"


def _curves_of_results(results: Results) -> dict[str, training.Seeds]:
    """Return the curves that results.json repeats, for where stage directories are not at hand."""
    found: dict[str, dict[int, Curve]] = {}
    for label, curve in results.training_curves.items():
        parts = re.fullmatch(r"(.*)-seed(\d+)(.*)", label)
        name, seed = (parts[1] + parts[3], int(parts[2])) if parts else (label, 0)
        if "epoch" in curve:
            found.setdefault(name, {})[seed] = curve
    return dict(found)


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
    section.pictures = drawn({"": [figures.injected_attacks(injection)]})
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
        f" {counted(data.num_dropped_duplicates, 'recording')} left out, because another one has the same messages."
        f" {counted(data.num_bad_rows, 'bad row')}."
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


def _provenance(content: RunContent[Results]) -> Section:
    section = provenance(content)
    section.folded_text["Decision rule of the default detector"] = as_yaml(
        json.loads(content.results.detector.decision.model_dump_json())
    )
    return section
