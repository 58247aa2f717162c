"""What a stage is expected to take, from what attempts like it took, and what its job asks for then.

A job that asks for too little is given more. One that asks for more than is needed is given less where `adaptive` is
said; what the command line asks for is meant, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kdgat.cluster.ending import EndKind
from kdgat.cluster.request import stage_resources, wanted_resources
from kdgat.cluster.resources import ResourceRequest, Resources, format_memory, format_walltime
from kdgat.cluster.site import Limits, Site
from kdgat.cluster.sizing import Estimate, estimate_gpu_memory, estimate_memory, estimate_walltime, growth, similar
from kdgat.cluster.usage import STEPS, Size, Usage, config_digest, matching, planned_epochs, run_name
from kdgat.stage import RunDirectory, Work

# An estimate that is not rounded looks exact, which it is not.
ROUND_S: Final = 300
ROUND_MIB: Final = 1024
EXACT_S: Final = 60  # of a rule, which is exact


@dataclass(frozen=True)
class Job:
    """Hold what is known of a stage before its job is submitted.

    Attributes:
        config: digest of its configuration; attempts with another one count where there are none with the same.
        size: of what it reads.
        run: the same for all attempts at this stage in this run.
        epochs: that it trains at most; 0 where it trains none, or nobody knows.
    """

    family: str
    stage: str
    config: str
    size: Size
    run: str
    epochs: int = 0

    @classmethod
    def of(cls, family: str, stage: str, config: Mapping[str, Any], size: Size, run: str = "") -> Job:
        """Describe a job of a stage with this configuration."""
        return cls(family, stage, config_digest(config), size, run, planned_epochs(config))

    @classmethod
    def in_directory(cls, directory: RunDirectory, history: Path) -> Job:
        """Describe the job of a stage by its spec and what it reads; RunDirectoryError without a valid spec.

        `history` is the file of its run.
        """
        spec = directory.read_spec()
        work = Work()
        paths = {source.resolve(directory.path) for source in spec.inputs.values()}
        work.count_inputs(path for path in paths if path.is_file())
        return cls.of(spec.family, spec.stage, spec.config, work.size, run_name(history, directory))


@dataclass(frozen=True)
class Expectation:
    """Hold what a stage is expected to take (seconds, MiB of the host, MiB of a GPU); None where nobody knows."""

    walltime: Estimate | None = None
    memory: Estimate | None = None
    gpu_memory: Estimate | None = None

    def else_from(self, other: Expectation) -> Expectation:
        """Return this with what it lacks from another one."""
        return Expectation(
            self.walltime or other.walltime, self.memory or other.memory, self.gpu_memory or other.gpu_memory
        )

    def measured(self) -> Expectation:
        """Return what attempts have shown of this."""
        return self._changed(lambda one: one if one.coverage is not None else None)

    def named(self, origin: str) -> Expectation:
        """Return this with what it comes from said before each source."""
        return self._changed(lambda one: replace(one, source=f"{origin}: {one.source}"))

    def _changed(self, change: Callable[[Estimate], Estimate | None]) -> Expectation:
        return Expectation(*(one and change(one) for one in (self.walltime, self.memory, self.gpu_memory)))

    def without(self, stated: Collection[str]) -> Expectation:
        """Return this without the amounts that somebody has asked for in so many words: they are meant."""
        return replace(self, **{key: None for key in ("walltime", "memory") if key in stated})


NOTHING: Final = Expectation()


@dataclass(frozen=True)
class JobRequest:
    """Hold what a job asks for, what it would ask for without any expectation, and why the two differ."""

    resources: Resources
    asked: Resources
    expected: Expectation
    changes: Sequence[str]  # a sentence for each amount that is another one

    @property
    def num_jobs(self) -> int | None:
        """Return how many jobs of this walltime the stage takes; None where nobody knows how long it takes."""
        if self.expected.walltime is None:
            return None
        return -(-self.expected.walltime.value // self.resources.walltime_s)


def expect(usages: Sequence[Usage], job: Job, asked: Resources) -> Expectation:
    """Estimate what a job takes from all attempts that are noted."""
    known = _known(usages, job, asked.cores, asked.gpus)
    return Expectation(
        _walltime(known, job),
        estimate_memory(known, job.size, asked.memory_mib, with_gpu=asked.gpus > 0),
        estimate_gpu_memory(known, job.size),
    )


def expect_walltime(usages: Sequence[Usage], job: Job) -> tuple[float, float] | None:
    """Return the least and the most seconds that a stage is likely to take where the newest attempt at it ran.

    The least is what one took that ended in a single attempt; where none of this configuration has, it is 0.
    """
    newest = next((one for one in reversed(usages) if (one.family, one.stage) == (job.family, job.stage)), None)
    if newest is None:
        return None
    known = _known(usages, job, newest.cores, newest.gpus)
    if (most := _walltime(known, job)) is None:
        return None
    attempts = Counter(one.run for one in known)
    whole = [
        one.wall_s
        for one in known
        if one.config == job.config and one.end == EndKind.FINISHED and attempts[one.run] == 1
    ]
    least = min(whole, default=0.0)
    return least, max(least, float(most.value))


def _known(usages: Sequence[Usage], job: Job, cores: int, gpus: int) -> Sequence[Usage]:
    """Return attempts on as many cores and GPUs, those of the same configuration where there are any."""
    known = matching(usages, job.family, job.stage, cores=cores, gpus=gpus)
    return [one for one in known if one.config == job.config] or known


def _walltime(known: Sequence[Usage], job: Job) -> Estimate | None:
    own, others = _split(known, job.run)
    if own and own[-1].left:
        return estimate_walltime(others, own, own[-1].left, own[-1].parameters)
    if not (rated := [one for one in others if one.unit_s > 0]):
        return None
    newest = rated[-1]
    rated = similar([one for one in rated if one.units == newest.units], job.size)
    # Steps are done as often as there is more to read; a stage without steps is one unit, which takes longer.
    scales = [max(1.0, growth(one.size, job.size)) for one in rated]
    if newest.units == STEPS:
        epochs = [job.epochs / one.epochs if job.epochs and one.epochs else 1.0 for one in rated]
        steps = [one.done + one.left for one in rated]
        units = max(round(number * scale * more) for number, scale, more in zip(steps, scales, epochs, strict=True))
    else:
        units = 1
        rated = [
            one.model_copy(update={"unit_s": one.unit_s * scale}) for one, scale in zip(rated, scales, strict=True)
        ]
    return estimate_walltime(rated, [], units, newest.parameters)


def _split(known: Sequence[Usage], run: str) -> tuple[list[Usage], list[Usage]]:
    own = [one for one in known if one.run == run]
    return own, [one for one in known if one.run != run]


def request_of_job(
    job: Job,
    usages: Sequence[Usage],
    requests: Mapping[str, ResourceRequest],
    site: Site,
    command_line: ResourceRequest,
    *,
    assumed: Expectation = NOTHING,
    like_stage: str | None = None,
) -> JobRequest:
    """Decide what the job of a stage asks for.

    Args:
        job: what is known of it.
        usages: attempts of all runs.
        requests, site, command_line: what is asked for, as of `stage_resources`.
        assumed: what is expected where no attempt has shown it.
        like_stage: the stage whose requests count; by default its own.

    Raises:
        UserError: as `stage_resources`.
    """
    stage = like_stage or job.stage
    asked = stage_resources(stage, requests, site, command_line)
    expected = expect(usages, job, asked).else_from(assumed)
    is_adaptive = wanted_resources(stage, requests, site, command_line).adaptive is True
    resources, changes = adapt(asked, expected, command_line, site.limits, is_adaptive=is_adaptive)
    return JobRequest(resources, asked, expected, changes)


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
        if estimate.coverage is None and key == "walltime_s":
            unit = EXACT_S
        wanted = -(-estimate.value // unit) * unit
        wanted = min(wanted, limit or wanted)
        is_enough = estimate.value <= before  # though the rounded number may be above it
        if wanted == before or (is_enough and (wanted > before or not is_adaptive or estimate.coverage is None)):
            continue
        changes[key] = wanted
        sentences.append(
            f"asks for {key.partition('_')[0]} {write(wanted)} instead of {write(before)}: {estimate.describe()}"
        )
    return asked.model_copy(update=changes), sentences
