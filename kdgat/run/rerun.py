"""Why a stage ran, or will run, again instead of being taken as it was: what its spec has otherwise than before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from textwrap import shorten
from typing import Any, Final

from kdgat.base.configuration import without_keys
from kdgat.base.files import list_folder
from kdgat.run.directory import DONE_STATES, OutputDirectory, RunIndex, StageRecord
from kdgat.run.plan import PlannedStage, Run, find_stage
from kdgat.stage import RunDirectory, RunDirectoryError, StageSpec

MOST: Final = 6  # differences that are named; the others are counted
MISSING: Final = "none"
LONGEST_VALUE: Final = 80  # letters


def describe_rerun(output: OutputDirectory, index: RunIndex, record: StageRecord) -> str:
    """Say in what a stage differs from its newest directory before; empty where there is none to compare with.

    Its identity is made of configuration, inputs and the version of its code: another git revision alone runs nothing.
    """
    earlier = _earlier(output, index, record)
    if earlier is None:
        return ""
    return _sentence(_differences(earlier, output.stage_directory(record).read_spec()))


def describe_reruns(run: Run, output: OutputDirectory, index: RunIndex) -> dict[str, str]:
    """Say why stages that have begun will begin anew by this plan, by name; those that stay or resume are left out."""
    found, taken = dict[str, str](), dict[str, RunDirectory]()
    begun = {one.name: one for one in index.stages if one.directory}
    for planned in (one for one in run.plan if one.name in begun):
        record = begun[planned.name]
        taken[planned.name] = output.stage_directory(record)
        try:
            before = taken[planned.name].read_spec()
            if anew := [name for name in planned.depends_on if name in found]:
                said = [*_own_differences(before, planned), f"after {', '.join(anew)}"]
            else:
                taken[planned.name], after = find_stage(run, planned, taken, output)
                there = taken[planned.name]
                resumes = record.state not in DONE_STATES and there.path.exists()
                said = [] if there.is_finished() or resumes else [*_differences(before, after)]
        except (OSError, ValueError):  # gone, or of another version: training says so
            continue
        if said:
            found[planned.name] = _sentence(said)
    return found


def _sentence(differences: Iterable[str]) -> str:
    found = list(differences)
    return "; ".join([*found[:MOST], *([f"{len(found) - MOST} more"] if len(found) > MOST else [])])


def _earlier(output: OutputDirectory, index: RunIndex, record: StageRecord) -> StageSpec | None:
    own = output.stage_directory(record)
    prefix = own.path.name.rpartition("-")[0]
    taken = [other.directory for other in index.stages if (other.stage, other.scale, other.seed) == _kind(record)]
    if len(taken) > 1:  # folds of a sweep: which of them an earlier directory is of, its name does not say
        return None
    try:
        written = own.spec_path.stat().st_mtime_ns
        others = [RunDirectory(path) for path in list_folder(output.stages_path, f"{prefix}-*") if path != own.path]
        others = [one for one in others if one.path.name.rpartition("-")[0] == prefix and one.spec_path.is_file()]
        older = [one for one in others if one.spec_path.stat().st_mtime_ns <= written]
        return max(older, key=lambda one: one.spec_path.stat().st_mtime_ns).read_spec() if older else None
    except (OSError, RunDirectoryError):  # removed meanwhile, or of another version: nothing to compare with
        return None


def _kind(record: StageRecord) -> tuple[str, str, int]:
    return record.stage, record.scale, record.seed


def _own_differences(before: StageSpec, after: StageSpec | PlannedStage) -> Iterator[str]:
    if before.code_version != after.code_version:
        yield f"version of its code {before.code_version} -> {after.code_version}"
    for key, old, new in changed_keys(before, after):
        yield f"{key} {_text(old)} -> {_text(new)}"


def _differences(before: StageSpec, after: StageSpec) -> Iterator[str]:
    yield from _own_differences(before, after)
    for name in sorted({*before.inputs, *after.inputs}):
        if name not in before.inputs:
            yield f"input {name} is new"
        elif name not in after.inputs:
            yield f"input {name} is gone"
        elif before.inputs[name].sha256 != after.inputs[name].sha256:
            yield f"input {name} has other content ({after.inputs[name].path})"


def _text(value: Any) -> str:
    text = str(value)
    if re.fullmatch(r"[0-9a-f]{64}", text):
        return text[:8]
    return MISSING if value is None else shorten(text, LONGEST_VALUE, placeholder=" ...")


def changed_keys(before: StageSpec | PlannedStage, after: StageSpec | PlannedStage) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys of the configuration that change the result, with the value of each, None where missing."""
    old, new = (dict(flat(without_keys(one.config, one.execution_keys))) for one in (before, after))
    changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    for key in sorted(changed):
        is_filled = any(one != key and one.startswith(key and f"{key}.") for one in changed)
        if not (is_filled and {} in (old.get(key), new.get(key))):  # a mapping without keys: those it has now say it
            yield key, old.get(key), new.get(key)


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested plain data by dotted key; items of a list that have names, by those.

    >>> dict(flat({"fits": [{"name": "line", "size": 8}], "seeds": [0, 1]}))
    {'fits': ['line'], 'fits.line.name': 'line', 'fits.line.size': 8, 'seeds': [0, 1]}
    """
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        names = [one["name"] for one in value]
        yield key, names  # their order counts, too
        if len(set(names)) == len(names):
            value = dict(zip(names, value, strict=True))
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from flat(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
