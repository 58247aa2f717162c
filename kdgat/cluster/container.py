"""How a worker's Python is started inside the site's container image, if it has one."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from kdgat.cluster.site import Site


def container_command(site: Site, default_python: str, uses_gpu: bool, binds: Iterable[Path] = ()) -> str:
    """Return the shell words that start Python on a node: the site's, the flow's own, or one inside the image."""
    if site.image is None:
        return shlex.quote(site.python or default_python)
    words = ["apptainer", "exec"]
    if uses_gpu:
        words.append("--nv")
    for path in dict.fromkeys(str(bind.absolute()) for bind in binds):
        words += ["--bind", path]
    return shlex.join([*words, site.image, site.python or "python"])
