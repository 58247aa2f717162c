"""Scores of models of a registry side by side, and only where they are of the same recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from kdgat.base import UserError
from kdgat.can.evaluation.tables import format_value
from kdgat.registry import ModelEntry, Registry
from kdgat.registry.entry import Metrics
from kdgat.run import Table

COMPARED: Final = ("f1", "false_alarm_rate")


def registered_scores(first: ModelEntry, second: ModelEntry) -> tuple[dict[str, Metrics], dict[str, str]]:
    """Return the scores of two models where both were measured on the same recordings, and why others are left out.

    Raises:
        UserError: if there is no such scenario.
    """
    left_out = {}
    for name in dict.fromkeys((*first.metrics, *second.metrics)):
        if name not in first.metrics or name not in second.metrics:
            left_out[name] = f"{(first if name in second.metrics else second).id} was not measured there"
        elif first.test_set(name) != second.test_set(name):
            left_out[name] = "other recordings, or other windows of them"
    names = [name for name in first.metrics if name not in left_out]
    if not names:
        raise UserError(
            f"{first.id} and {second.id} were measured on different recordings: give --data-root DATA, and both are "
            "measured on the same ones now"
        )
    return {entry.id: {name: entry.metrics[name] for name in names} for entry in (first, second)}, left_out


def test_set_names(entries: Sequence[ModelEntry]) -> dict[str, str]:
    """Name the test sets of models A, B, C ...: by model id, the same where scores are of the same recordings."""
    keys = {
        entry.id: (entry.service, *((name, entry.test_set(name)) for name in sorted(entry.metrics)))
        for entry in entries
    }
    letters = {key: _letters(place) for place, key in enumerate(dict.fromkeys(keys.values()))}
    return {model: letters[key] for model, key in keys.items()}


def _letters(number: int) -> str:
    return ("" if number < 26 else _letters(number // 26 - 1)) + chr(ord("A") + number % 26)


def measured_scores(
    registry: Registry,
    entries: tuple[ModelEntry, ModelEntry],
    data_root: Path,
    dataset: str | None,
    catalog: Path | None,
) -> tuple[dict[str, Metrics], dict[str, str]]:
    """Score two models now, on the test recordings that neither has seen, and say why others are left out.

    Raises:
        UserError: if their numbers count different things, or no recording is left.
        RegistryError, DatasetError, RecordingError: naming file or folder and the fix.
    """
    from kdgat.can.evaluation.run import lineage_of
    from kdgat.can.nightly.comparison import compare_runs

    for entry in entries:
        registry.verify(entry)
    paths = {entry.id: registry.model_path(entry.id) for entry in entries}
    seen = {key: name for path in paths.values() for key, name in lineage_of(path).trained.items()}
    found = compare_runs(paths, data_root, dataset or entries[0].dataset, catalog=catalog, also_trained=seen)
    if found.faults:
        raise UserError("; ".join(found.faults))
    if not found.recordings:
        raise UserError(f"{data_root}: holds no test recording that neither model has seen; add some")
    return found.metrics, found.left_out


def comparison_table(entries: Sequence[ModelEntry], metrics: Mapping[str, Metrics]) -> Table:
    """Return a row per scenario, and the mean over them: F1 and benign windows in alarm of two models, and changes."""
    both = [metrics[entry.id] for entry in entries]
    rows = []
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in COMPARED}
    for scenario, scores in both[0].items():
        cells = [scenario, f"{scores.get('num_windows') or 0:,.0f}"]
        for name in COMPARED:
            one, other = (model[scenario].get(name) for model in both)
            if one is not None and other is not None:
                values[name].append((one, other))
            cells += _pair(one, other)
        rows.append(cells)
    mean = ["mean", ""]
    for pairs in values.values():
        mean += _pair(*(fmean(column) for column in zip(*pairs, strict=True))) if pairs else _pair(None, None)
    rows.append(mean)
    heading = ["scenario", "windows", "F1 of A", "of B", "change", "benign windows in alarm of A", "of B", "change"]
    caption = ", ".join(f"{letter} is {entry.id}" for letter, entry in zip("AB", entries, strict=True))
    return Table.of(heading, rows, caption)


def _pair(one: float | None, other: float | None) -> list[str]:
    change = "-" if one is None or other is None else f"{other - one:+.4f}"
    return [format_value(one), format_value(other), change]
