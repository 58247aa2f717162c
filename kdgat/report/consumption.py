"""What the stages of a run took, what they had asked for, and where the time of their training steps went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kdgat.base import MIB
from kdgat.cluster import format_memory, format_walltime
from kdgat.cluster.usage import Usage
from kdgat.report.content import StageContent
from kdgat.report.document import Document, Section
from kdgat.run import Table

LITTLE: Final = 0.3  # share of the memory that was asked for, below which much of it is kept from others
IDLE: Final = 0.4  # share of the time, below which a GPU has too little to do
LONG: Final = 0.3  # share of a step, above which the model waits for its data
HEADINGS: Final = (
    *("Stage", "Device", "Walltime", "of asked", "Peak memory", "of asked"),
    *("GPU memory", "held by torch", "free at least"),
    *("GPU busy", "Loading", "In the queue", "Until the first step", "Seconds per step"),
)
UNKNOWN: Final = "-"


def with_consumption(document: Document, stages: Sequence[StageContent]) -> Document:
    """Return the report of a family with this section before its last one, which says where its numbers come from."""
    section = consumption_section(stages)
    if section is None:
        return document
    *first, last = document.sections
    return replace(document, sections=[*first, section, last])


def consumption_section(stages: Sequence[StageContent]) -> Section | None:
    """Return the section; None where nothing is known of any stage."""
    section = Section("consumption", "What the stages took")
    section.paragraphs.extend(advice(stages))
    rows = [_row(stage.record.name, stage.usages[-1]) for stage in stages if stage.usages and stage.usages[-1].wall_s]
    if rows:
        shown = [column for column in range(len(HEADINGS)) if any(row[column] != UNKNOWN for row in rows)]
        header, *rows = [[row[column] for column in shown] for row in (HEADINGS, *rows)]
        section.tables.append(Table.of(header, rows, "The last attempt at each stage."))
    profiles = [(stage.record.name, profile) for stage in stages for profile in stage.profiles]
    if profiles:
        section.tables.append(_phases(profiles))
    for name, profile in profiles:
        section.folded[f"Operators of {name}, {profile['fit']}"] = [_operators(profile)]
    return section if section.tables else None


def advice(stages: Iterable[StageContent]) -> list[str]:
    """Say in one sentence each what asks for too much, and what waits for data."""
    sentences = []
    for stage in stages:
        usage = stage.usages[-1] if stage.usages else None
        if usage is not None and usage.asked is not None and 0 < usage.rss_mib < LITTLE * usage.asked.memory_mib:
            sentences.append(
                f"{stage.record.name} asked for {format_memory(usage.asked.memory_mib)} and took {usage.rss_mib} MiB:"
                f" resources.{stage.record.stage}.adaptive=true asks for what is needed."
            )
        if usage is not None and usage.loading_share > LONG:
            sentences.append(
                f"{stage.record.name} spent {usage.loading_share:.0%} of its training on loading batches, during which"
                " the model waits."
            )
        elif usage is not None and usage.gpu_busy is not None and usage.gpu_busy < IDLE:
            sentences.append(
                f"The GPU of {stage.record.name} had a kernel to run {usage.gpu_busy:.0%} of the time, however small:"
                " several stages on one GPU give it more, or larger batches (training.batch_size), which train"
                " otherwise."
            )
        for profile in stage.profiles:
            if profile["phases"]["loading"] > LONG * profile["seconds"]:
                share = profile["phases"]["loading"] / profile["seconds"]
                sentences.append(
                    f"{stage.record.name}, {profile['fit']}: {share:.0%} of a step go into loading its batch, during"
                    " which the model waits."
                )
    return sentences


def _row(name: str, usage: Usage) -> list[str]:
    asked = usage.asked
    return [
        name,
        usage.device,
        format_walltime(round(usage.wall_s)),
        f"{usage.wall_s / asked.walltime_s:.0%}" if asked else UNKNOWN,
        format_memory(usage.rss_mib) if usage.rss_mib else UNKNOWN,
        f"{usage.rss_mib / asked.memory_mib:.0%}" if asked and usage.rss_mib else UNKNOWN,
        format_memory(usage.gpu_mib) if usage.gpu_mib else UNKNOWN,
        format_memory(usage.gpu_reserved_mib) if usage.gpu_reserved_mib else UNKNOWN,
        format_memory(usage.gpu_free_mib) if usage.gpu_free_mib is not None else UNKNOWN,
        f"{usage.gpu_busy:.0%}" if usage.gpu_busy is not None else UNKNOWN,
        f"{usage.loading_share:.0%}" if usage.loading_share else UNKNOWN,
        format_walltime(round(usage.queue_s)) if asked else UNKNOWN,
        f"{usage.startup_s:.1f} s" if usage.startup_s else UNKNOWN,
        f"{usage.unit_s:.3g}" if usage.units == "steps" and usage.unit_s else UNKNOWN,
    ]


def _phases(profiles: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    phases = list(profiles[0][1]["phases"])
    rows = []
    for name, profile in profiles:
        total_s = profile["seconds"]
        shares = [profile["phases"][phase] / total_s for phase in phases]
        shares.append(max(1 - sum(shares), 0.0))
        row = [f"{name}, {profile['fit']}", f"{1000 * total_s / profile['steps']:.3g}"]
        rows.append([*row, *(f"{share:.0%}" for share in shares)])
    header = ("Fit", "Milliseconds", *(phase.capitalize() for phase in phases), "The rest")
    return Table.of(header, rows, "Where a training step goes: the mean of those that were profiled.")


def _operators(profile: Mapping[str, Any]) -> Table:
    rows = [
        [one["name"], str(one["calls"]), f"{1000 * one['seconds']:.3g}", f"{one['bytes'] / MIB:.1f}"]
        for one in profile["operators"]
    ]
    header = ("Operator", "Calls", "Milliseconds of its own", "MiB allocated")
    return Table.of(header, rows, f"The operators that took most, in {profile['steps']} steps.")
