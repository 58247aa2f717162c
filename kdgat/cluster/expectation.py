"""What a stage is expected to take, from what attempts like it took, and what its job asks for then.

A job that asks for too little is given more. One that asks for more than is needed is given less where `adaptive` is
said; what the command line asks for is meant, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.cluster.estimate import wanted_resources
from kdgat.cluster.resources import ResourceRequest, Resources, format_memory, format_walltime
from kdgat.cluster.site import Limits, Site
from kdgat.cluster.sizing import Estimate, estimate_memory, estimate_walltime, growth
from kdgat.cluster.usage import STEPS, Size, Usage, config_digest, matching, read_usages, run_name
from kdgat.stage.directory import RunDirectory
from kdgat.stage.work import BYTES

# An estimate that is not rounded looks exact, which it is not.
ROUND_S: Final = 300
ROUND_MIB: Final = 1024


@dataclass(frozen=True)
class Job:
    """Hold what is known of a stage before its job is submitted.

    Attributes:
        config: digest of its configuration; attempts with another one count where there are none with the same.
        size: of what it reads.
        run: the same for all attempts at this stage in this run.
    """

    family: str
    stage: str
    config: str
    size: Size
    run: str


@dataclass(frozen=True)
class Expectation:
    """Hold what a stage is expected to take; None where no attempt has shown it."""

    walltime: Estimate | None
    memory: Estimate | None


def expect(usages: Sequence[Usage], job: Job, asked: Resources) -> Expectation:
    """Estimate walltime (seconds) and memory (MiB) of a job from all attempts that are noted."""
    known = matching(usages, job.family, job.stage, cores=asked.cores, gpus=asked.gpus)
    if same := [one for one in known if one.config == job.config]:
        known = same
    return Expectation(
        _walltime(known, job), estimate_memory(known, job.size, asked.memory_mib, with_gpu=asked.gpus > 0)
    )


def _walltime(known: Sequence[Usage], job: Job) -> Estimate | None:
    own, others = _split(known, job.run)
    if own and own[-1].left:
        return estimate_walltime(others, own, own[-1].left, own[-1].parameters)
    if not (rated := [one for one in others if one.unit_s > 0]):
        return None
    newest = rated[-1]
    rated = [one for one in rated if one.units == newest.units]
    # Steps are done as often as there is more to read; a stage without steps is one unit, which takes longer.
    scales = [max(1.0, growth(one.size, job.size)) for one in rated]
    if newest.units == STEPS:
        units = max(round((one.done + one.left) * scale) for one, scale in zip(rated, scales, strict=True))
    else:
        units = 1
        rated = [
            one.model_copy(update={"unit_s": one.unit_s * scale}) for one, scale in zip(rated, scales, strict=True)
        ]
    return estimate_walltime(rated, [], units, newest.parameters)


def _split(known: Sequence[Usage], run: str) -> tuple[list[Usage], list[Usage]]:
    own = [one for one in known if one.run == run]
    return own, [one for one in known if one.run != run]


def adapt_to_history(
    directory: RunDirectory,
    asked: Resources,
    history: Path,
    requests: Mapping[str, ResourceRequest],
    site: Site,
    command_line: ResourceRequest,
    like_stage: str | None = None,
) -> tuple[Resources, list[str]]:
    """Return what the job of a stage asks for in the light of earlier attempts, and a sentence for each change.

    Args:
        directory: of the stage, with its spec: what it reads is there.
        asked: what configuration, site and command line ask for.
        history: file of the run; those beside it are read, too.
        requests, site, command_line: where `asked` comes from.
        like_stage: the stage whose requests count; by default its own.

    Raises:
        RunDirectoryError: if there is no valid spec.
    """
    spec = directory.read_spec()
    paths = {source.resolve(directory.path) for source in spec.inputs.values()}
    size = {BYTES: sum(path.stat().st_size for path in paths if path.is_file())}
    job = Job(spec.family, spec.stage, config_digest(spec.config), size, run_name(history, directory))
    is_adaptive = wanted_resources(like_stage or spec.stage, requests, site, command_line).adaptive is True
    expected = expect(read_usages(history.parent), job, asked)
    return adapt(asked, expected, command_line, site.limits, is_adaptive=is_adaptive)


def adapt(
    asked: Resources, expected: Expectation, command_line: ResourceRequest, limits: Limits, *, is_adaptive: bool
) -> tuple[Resources, list[str]]:
    """Return what the job asks for, and a sentence for each amount that is not the one that was asked for."""
    changes: dict[str, int] = {}
    sentences = []
    for key, estimate, was_given, limit, unit, write in (
        ("walltime_s", expected.walltime, command_line.walltime, limits.walltime_s, ROUND_S, format_walltime),
        ("memory_mib", expected.memory, command_line.memory, limits.memory_mib, ROUND_MIB, format_memory),
    ):
        if estimate is None or was_given is not None:
            continue
        before = getattr(asked, key)
        wanted = -(-estimate.value // unit) * unit
        wanted = min(wanted, limit or wanted)
        is_enough = estimate.value <= before  # though the rounded number may be above it
        if wanted == before or (is_enough and (wanted > before or not is_adaptive)):
            continue
        changes[key] = wanted
        sentences.append(
            f"asks for {key.partition('_')[0]} {write(wanted)} instead of {write(before)}: {estimate.source} "
            f"(enough for {estimate.coverage:.0%} of such runs)"
        )
    return asked.model_copy(update=changes), sentences
