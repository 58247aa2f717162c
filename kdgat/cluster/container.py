"""How a worker's Python is started inside the site's container image, if it has one."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from kdgat.cluster.site import Site


def container_command(site: Site, default_python: str, uses_gpu: bool, binds: Iterable[Path] = ()) -> str:
    """Return the shell words that start Python on a node: the site's, the flow's own, or one inside the image."""
    if site.image is None:
        return shlex.quote(default_python) if site.python is None else _word(site.python)
    words = ["apptainer", "exec"]
    if uses_gpu:
        words.append("--nv")
    for path in dict.fromkeys(str(bind.absolute()) for bind in binds):
        words += ["--bind", path]
    return " ".join([shlex.join(words), _word(site.image), _word(site.python or "python")])


def in_double_quotes(text: str) -> str:
    """Quote what a site file says for the shell of the node, which puts in the variables that it names."""
    return '"' + re.sub(r"([\\\"`])", r"\\\1", text) + '"'


def _word(text: str) -> str:
    return in_double_quotes(text) if "$" in text else shlex.quote(text)
