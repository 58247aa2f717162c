"""What people give a flow: presets and sites by name, and what is checked before anything is started."""

from typing import Final, Literal

from kdgat.can.catalog import find_entry
from kdgat.can.config import CanConfig
from kdgat.can.plan import plan_can
from kdgat.can.run import OutputDirectory
from kdgat.cluster.estimate import check_command_line
from kdgat.cluster.resources import ResourceRequest
from kdgat.cluster.script import require_one_word
from kdgat.cluster.site import LOCAL, Site, SiteError, load_site, require_usable

Preset = Literal["quick", "full", "tutorial"]
NO_REQUEST: Final = ResourceRequest()
LOCAL_SITE: Final = Site(name=LOCAL)


def as_site(site: Site | str, command_line: ResourceRequest = NO_REQUEST) -> Site:
    """Return the site that was named, usable from this machine, and with room for what is asked of it.

    Raises:
        SiteError: if it is unknown, its file is wrong, or it cannot be used from here.
        ResourceError: if the request is more than the site grants.
    """
    found = load_site(site) if isinstance(site, str) else site
    if found.scheduler == "local" and (said := command_line.said()):
        raise SiteError(
            f"command_line={said}: on site {found.name} stages are processes of this machine, which use what it has: "
            "leave it out, or name a cluster by site"
        )
    check_command_line(command_line, found)
    require_usable(found)
    return found


def check_can_run(config: CanConfig, output: OutputDirectory, site: Site) -> None:
    """Let mistakes come to light before anything is started.

    Raises:
        DatasetError: if the dataset is unknown.
        ValueError: of another kind, naming what cannot be planned, or an output directory that jobs cannot be given.
    """
    find_entry(config.data.dataset, config.data.data_root, config.data.catalog)
    plan_can(config)
    if site.scheduler == "slurm":
        require_one_word(output.slurm_path)
