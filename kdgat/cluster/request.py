"""What a stage's job asks for: the command line, the configuration, the site and last of all a small default."""

from collections.abc import Mapping
from typing import Any, Final

from kdgat.base import UserError
from kdgat.cluster.resources import ResourceRequest, Resources, parse_memory, parse_walltime
from kdgat.cluster.site import Site

DEFAULT_KEY: Final = "default"  # in a configuration's `resources`: every stage that has no entry of its own
BUILT_IN: Final = ResourceRequest(walltime="01:00:00", memory="4G", cores=1, gpus=0, adaptive=False)
_LIMITED: Final = ("walltime", "memory", "cores", "gpus")


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
    limits = site.limits
    gpus = _within(wanted.gpus, limits.gpus)
    return Resources(
        walltime_s=_within(wanted.walltime_s, limits.walltime_s),
        memory_mib=_within(wanted.memory_mib, limits.memory_mib),
        cores=_within(wanted.cores, limits.cores),
        gpus=gpus,
        gpu_type=(wanted.gpu_type or site.gpu_type) if gpus else None,
    )


def watcher_resources(site: Site) -> Resources:
    """Return what the job asks for in which a detached command watches a run, held to the limits of the site."""
    watcher, limits = site.watcher, site.limits
    return Resources(
        walltime_s=_within(parse_walltime(watcher.walltime), limits.walltime_s),
        memory_mib=_within(parse_memory(watcher.memory), limits.memory_mib),
        cores=_within(watcher.cores, limits.cores),
    )


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
    for key in _LIMITED:
        value, limit = getattr(command_line, key), getattr(site.limits, key)
        if value is None or limit is None or _number(key, value) <= _number(key, limit):
            continue
        if key == "gpus" and limit == 0:
            raise UserError(f"--gpus {value}: site {site.name} has no GPUs; leave the option out or take another site")
        raise UserError(f"--{key} {value} is above what site {site.name} grants: ask for {limit} at most")


def held_to_limits(
    stage: str, requests: Mapping[str, ResourceRequest], site: Site, command_line: ResourceRequest
) -> dict[str, tuple[Any, Any]]:
    """Return which keys a stage gets less of than it asks for: what was asked, and what the site grants."""
    wanted = wanted_resources(stage, requests, site, command_line)
    return {
        key: (getattr(wanted, key), limit)
        for key in _LIMITED
        if (limit := getattr(site.limits, key)) is not None and _number(key, getattr(wanted, key)) > _number(key, limit)
    }


def _number(key: str, value: Any) -> int:
    match key:
        case "walltime":
            return parse_walltime(value)
        case "memory":
            return parse_memory(value)
    return int(value)


def _within(value: int | None, limit: int | None) -> int:
    assert value is not None  # BUILT_IN says every key
    return value if limit is None else min(value, limit)
