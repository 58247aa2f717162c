"""Bring recordings of any known format into the layout of a dataset."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from kdgat.base import sha256_of_file, sync_to_disk
from kdgat.base.files import put_in_place, temporary_path
from kdgat.canbus.catalog import DatasetError, RecordingPlace
from kdgat.canbus.inspection import Inspector, RecordingInspection
from kdgat.canbus.labelling import LEARNED_AS_BENIGN
from kdgat.canbus.logs import write_recording
from kdgat.canbus.messages import SCENARIO_SEPARATOR, Messages, ReadLimits, ReadOptions, RecordingError
from kdgat.canbus.names import is_path_part, recording_name
from kdgat.canbus.stream import stream_labelled

NO_LABELS = (
    f"{LEARNED_AS_BENIGN}; if it holds none, bring it in by "
    "`kdgat data import --attack-free`, else by `--attacks FILE`, a table begin,end,id of its attacks"
)


def import_recording(
    source: Path,
    folder: Path,
    scenario: str,
    *,
    name: str | None = None,
    attack_free: bool = False,
    attacks: Path | None = None,
    require_labels: bool = False,
    replace: bool = False,
    put_aside: Path | None = None,
    limits: ReadLimits | None = None,
    channel: str | None = None,
    options: ReadOptions | None = None,
    span_s: tuple[float, float] | None = None,
) -> tuple[Path, RecordingInspection]:
    """Write `source` as `<folder>/<scenario>__<name>.parquet`, all of it or nothing; return path and what is in it.

    `attack_free` labels every message benign; `attacks` is a file with the times of attacks in a source without
    labels; `require_labels` refuses one that has none. With `replace` a file of that name gives way; the folder
    `put_aside` keeps it, unless the new one is the same. `channel` is the one to take of a source that names several,
    `options` what it does not say itself; of `span_s`, times of the source, only what is within is taken. Raise
    RecordingError for a source that cannot be read or holds attacks then, DatasetError for a name that is not possible
    in the layout or is taken.
    """
    name = name or recording_name(source)[1]
    for key, text in (("scenario", scenario), ("name", name)):
        if not is_path_part(text) or (key == "scenario" and SCENARIO_SEPARATOR in text):
            raise DatasetError(
                f"{key}={text!r}: cannot be part of a file name <scenario>{SCENARIO_SEPARATOR}<recording>.parquet; "
                f"use letters, digits, - and _, and {SCENARIO_SEPARATOR!r} nowhere in a scenario"
            )
    target = folder / f"{scenario}{SCENARIO_SEPARATOR}{name}.parquet"
    if target.exists() and not replace:
        raise DatasetError(f"{target}: exists already; give another --name, or --replace")
    kept: Path | None = None
    with stream_labelled(
        source, scenario=scenario, limits=limits, channel=channel, options=options, attacks=attacks
    ) as stream:
        inspector = Inspector(RecordingPlace(source, scenario, name), options)

        def chunks() -> Iterator[Messages]:
            nonlocal kept
            for messages in inspector.watched(_within(stream, span_s)):
                if require_labels and not (messages.labelled or attack_free):
                    raise RecordingError(source, NO_LABELS)
                yield dataclasses.replace(messages, name=name, labelled=messages.labelled or attack_free)
            inspection = inspector.finish(stream.status)
            if problem := inspection.problem:
                raise RecordingError(source, problem)
            if attack_free and inspection.num_attacks:
                raise RecordingError(
                    source, f"{inspection.num_attacks} messages are labelled attacks; drop --attack-free"
                )
            kept = None if put_aside is None or not target.exists() else _keep_copy(target, put_aside)

        write_recording(target, chunks())
    if kept is not None and sha256_of_file(kept) == sha256_of_file(target):
        kept.unlink()
    return target, inspector.inspection


def _within(chunks: Iterable[Messages], span_s: tuple[float, float] | None) -> Iterator[Messages]:
    for messages in chunks:
        if span_s is None:
            yield messages
        elif len(chosen := messages.select((messages.timestamp >= span_s[0]) & (messages.timestamp < span_s[1]))):
            yield chosen


def _keep_copy(path: Path, folder: Path) -> Path:
    """Give a file a second name in a folder, so that what replaces the first one loses nothing; return the new path."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        if left.samefile(path):  # left by a process that was killed before it replaced the file
            return left
    place = free_place(folder / path.name)
    try:
        os.link(path, place)
    except OSError:  # a file system without hard links
        temporary = temporary_path(place)
        shutil.copy2(path, temporary)
        sync_to_disk(temporary)
        put_in_place(temporary, place)
    sync_to_disk(folder)
    return place


def free_place(path: Path) -> Path:
    """Return a path that nothing has, numbered where that one is taken."""
    numbered = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(1))
    return path if not path.exists() else next(place for place in numbered if not place.exists())
