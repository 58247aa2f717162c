"""Bring recordings of any known format into the layout of a dataset."""

from __future__ import annotations

from pathlib import Path

from kdgat.can.catalog import DatasetError
from kdgat.can.logs import read_recording, write_recording
from kdgat.can.messages import SCENARIO_SEPARATOR, Messages, ReadLimits, RecordingError

NO_LABELS = (
    "has no labels, so attacks in it would be learned as benign; if it holds none, bring it in by "
    "`kdgat data import --attack-free`"
)


def import_recording(
    source: Path,
    folder: Path,
    scenario: str,
    *,
    name: str | None = None,
    attack_free: bool = False,
    require_labels: bool = False,
    replace: bool = False,
    limits: ReadLimits | None = None,
) -> tuple[Path, Messages]:
    """Write `source` as `<folder>/<scenario>__<name>.parquet`, all of it or nothing; return path and messages.

    `attack_free` labels every message benign; `require_labels` refuses a source without labels. Raise RecordingError
    for a source that cannot be read or holds attacks then, DatasetError for a name that cannot stand in the layout or
    is taken.
    """
    messages = read_recording(source, scenario=scenario, limits=limits)
    messages.name = name or messages.name
    for key, text in (("scenario", scenario), ("name", messages.name)):
        if not text or "/" in text or text.startswith(".") or (key == "scenario" and SCENARIO_SEPARATOR in text):
            raise DatasetError(
                f"{key}={text!r}: cannot be part of a file name <scenario>{SCENARIO_SEPARATOR}<recording>.parquet; "
                f"use letters, digits, - and _, and {SCENARIO_SEPARATOR!r} nowhere in a scenario"
            )
    if attack_free:
        if messages.num_attacks:
            raise RecordingError(source, f"{messages.num_attacks} messages are labelled attacks; drop --attack-free")
        messages.labelled = True
    if require_labels and not messages.labelled:
        raise RecordingError(source, NO_LABELS)
    target = folder / f"{scenario}{SCENARIO_SEPARATOR}{messages.name}.parquet"
    if target.exists() and not replace:
        raise DatasetError(f"{target}: exists already; give another --name, or --replace")
    write_recording(target, messages)
    return target, messages
