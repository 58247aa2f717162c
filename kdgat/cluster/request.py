"""What a stage's job asks for: the command line, the configuration, the site and last of all a small default.

A job that asks for less than attempts like it took is given more. One that asks for more than is needed is given less
where `adaptive` is said; what the command line asks for is meant, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import UserError
from kdgat.cluster.resources import Amounts, ResourceRequest, Resources, format_memory, format_walltime
from kdgat.cluster.site import Limits, Site

if TYPE_CHECKING:
    from kdgat.cluster.forecast import Expectation, Job
    from kdgat.cluster.usage import Usage

DEFAULT_KEY: Final = "default"  # in a configuration's `resources`: every stage that has no entry of its own
BUILT_IN: Final = ResourceRequest(walltime="01:00:00", memory="4G", cores=1, gpus=0, adaptive=False)
# The amounts that a site limits, and the same as numbers.
LIMITED: Final = {"walltime": "walltime_s", "memory": "memory_mib", "cores": "cores", "gpus": "gpus"}
# An estimate that is not rounded looks exact, which it is not; a rule is.
ROUND_S: Final = 300
EXACT_S: Final = 60
ROUND_MIB: Final = 1024


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
        walltime = self.expected.get("walltime")
        return None if walltime is None else -(-walltime.value // self.resources.walltime_s)


def request_of_job(
    job: Job,
    usages: Sequence[Usage],
    requests: Mapping[str, ResourceRequest],
    site: Site,
    command_line: ResourceRequest,
    *,
    assumed: Expectation | None = None,
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
    from kdgat.cluster.forecast import expect  # numpy, of which a configuration has no need

    stage = like_stage or job.stage
    asked = stage_resources(stage, requests, site, command_line)
    expected = {**(assumed or {}), **expect(usages, job, asked)}
    is_adaptive = wanted_resources(stage, requests, site, command_line).adaptive is True
    changed, sentences = dict[str, int](), []
    for amount, unit, write in (("walltime", ROUND_S, format_walltime), ("memory", ROUND_MIB, format_memory)):
        estimate, number = expected.get(amount), LIMITED[amount]
        if estimate is None or getattr(command_line, amount) is not None:
            continue
        before, limit = getattr(asked, number), getattr(site.limits, number)
        is_rule = estimate.coverage is None
        unit = EXACT_S if is_rule and amount == "walltime" else unit
        wanted = -(-estimate.value // unit) * unit
        wanted = min(wanted, limit or wanted)
        is_enough = estimate.value <= before  # though the rounded number may be above it
        if wanted == before or (is_enough and (wanted > before or not is_adaptive or is_rule)):
            continue
        changed[number] = wanted
        sentences.append(f"asks for {amount} {write(wanted)} instead of {write(before)}: {estimate.describe()}")
    return JobRequest(asked.model_copy(update=changed), asked, expected, sentences)


def stage_resources(
    stage: str, requests: Mapping[str, ResourceRequest], site: Site, command_line: ResourceRequest
) -> Resources:
    """Decide what the job of one stage asks for, within the limits of the site.

    What a configuration or a site's defaults ask for beyond a limit is held to the limit; a GPU where there is none
    is left out. What the command line asks for is meant, holds for every stage and beats everything else. `requests`
    are by stage name or "default".

    Raises:
        UserError: if the command line asks for more than the site grants, naming both numbers.
    """
    check_command_line(command_line, site)
    wanted = wanted_resources(stage, requests, site, command_line)
    found = _within(wanted, site.limits)
    return found.model_copy(update={"gpu_type": (wanted.gpu_type or site.gpu_type) if found.gpus else None})


def watcher_resources(site: Site) -> Resources:
    """Return what the job asks for in which a detached command watches a run, held to the limits of the site."""
    return _within(ResourceRequest(**site.watcher.model_dump(), gpus=0), site.limits)


def wanted_resources(
    stage: str, requests: Mapping[str, ResourceRequest], site: Site, command_line: ResourceRequest
) -> ResourceRequest:
    """Return what a stage asks for before the limits of the site are looked at; every key but gpu_type is there."""
    return command_line.over(configured_request(stage, requests)).over(site.defaults).over(BUILT_IN)


def configured_request(stage: str, requests: Mapping[str, ResourceRequest]) -> ResourceRequest:
    """Return what a configuration asks for a stage: by its own name, and where that says nothing, for all of them."""
    nothing = ResourceRequest()
    return requests.get(stage, nothing).over(requests.get(DEFAULT_KEY, nothing))


def check_command_line(command_line: ResourceRequest, site: Site) -> None:
    """Refuse what the command line asks for beyond the limits of the site.

    Raises:
        UserError: naming option, both numbers and the fix.
    """
    for key, (value, limit) in _beyond(command_line, site.limits).items():
        if key == "gpus" and limit == 0:
            raise UserError(f"--gpus {value}: site {site.name} has no GPUs; leave the option out or take another site")
        raise UserError(f"--{key} {value} is above what site {site.name} grants: ask for {limit} at most")


def held_to_limits(
    stage: str, requests: Mapping[str, ResourceRequest], site: Site, command_line: ResourceRequest
) -> dict[str, tuple[Any, Any]]:
    """Return which keys a stage gets less of than it asks for: what was asked, and what the site grants."""
    return _beyond(wanted_resources(stage, requests, site, command_line), site.limits)


def _beyond(asked: Amounts, limits: Limits) -> dict[str, tuple[Any, Any]]:
    """Return the amounts of which more is asked for than is granted, with both texts."""
    numbers = {key: (getattr(asked, number), getattr(limits, number)) for key, number in LIMITED.items()}
    return {
        key: (getattr(asked, key), getattr(limits, key))
        for key, (number, limit) in numbers.items()
        if number is not None and limit is not None and number > limit
    }


def _within(wanted: ResourceRequest, limits: Limits) -> Resources:
    numbers = {number: (getattr(wanted, number), getattr(limits, number)) for number in LIMITED.values()}
    return Resources(**{key: value if limit is None else min(value, limit) for key, (value, limit) in numbers.items()})
