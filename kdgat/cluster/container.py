"""How a worker's Python is started on a node: as it is there, or inside the site's container image.

Inside an image its own kdgat runs, not the checkout; of the node it sees what `kdgat.container.binds` lists, the folder
on the node's own disk, and the control groups, in which the kernel counts what it killed for memory.
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kdgat.cluster.memory import CGROUP_ROOT
from kdgat.cluster.site import Site
from kdgat.container.apptainer import apptainer_variables
from kdgat.container.binds import Bind
from kdgat.container.layout import (
    CACHES,
    CUTTING_VARIABLES,
    GPU_CACHES,
    HOST_VARIABLES,
    INSTALLED,
    PERSONAL_PREFIXES,
    PERSONAL_VARIABLES,
)
from kdgat.stage.provenance import IMAGE_STARTED_VARIABLE
from kdgat.stage.staging import CACHE_VARIABLE

IMAGE_CHANGED: Final = "changed since submission"  # in what a job says that finds another file than was checked
_LOCAL_VARIABLE: Final = "KDGAT_NODE_LOCAL"  # our folder in the site's `node_local`
# No image has squeue, and Slurm before 23.02 puts the job's end in no variable.
_JOB_END: Final = (
    'if [ -z "$SLURM_JOB_END_TIME" ] '
    '&& end=$(SLURM_TIME_FORMAT=standard timeout 20 squeue -h -j "$SLURM_JOB_ID" -o %e) && [ -n "$end" ] '
    '&& end=$(date -d "$end" +%s 2>/dev/null); then export SLURM_JOB_END_TIME=$end; fi'
)


def container_command(
    site: Site, default_python: str, uses_gpu: bool, binds: Iterable[Bind] = (), folder: Path | None = None
) -> str:
    """Return the shell words that start Python on a node: the site's, the flow's own, or one inside the image.

    Args:
        site: says whether there is an image, and the folder on the node's own disk.
        default_python: what runs where the site says nothing.
        uses_gpu: whether the job has GPUs that must be visible inside.
        binds: what of the machine is visible inside.
        folder: the working folder inside, which must be among them.

    Raises:
        UserError: if something cannot be bound.
    """
    if site.image is None:
        return shlex.quote(default_python) if site.python is None else _word(site.python)
    # Neither the home folder, nor the command's, nor what lies in the node's /tmp: only what is named.
    arguments = ["apptainer", "exec", *(["--nv"] if uses_gpu else []), "--no-mount", "home,cwd,tmp"]
    if folder is not None:
        arguments += ["--pwd", str(folder)]
    # Upper folders first: a bind covers what was bound below it before.
    for bind in sorted([*binds, Bind(CGROUP_ROOT, CGROUP_ROOT)], key=lambda bind: len(bind.target.parts)):
        arguments += ["--bind", bind.describe()]
    if "$" not in site.node_local:
        local = Path(site.node_local)
        Bind(local, local, is_writable=True).describe()  # refuses here what would end on the node
    # Last: it is a folder of ours, with nothing of the others below it.
    listed = [shlex.join(arguments), "--bind", local_directory(site)]
    if site.staging == "scratch":
        listed.append(f'${{{CACHE_VARIABLE}:+--bind "${CACHE_VARIABLE}"}}')
    return " ".join([*listed, _word(site.image), _word(site.python or "python")])


def local_directory(site: Site) -> str:
    """Return the shell word for the folder on the node's own disk in which a worker keeps its files."""
    return site.node_local if site.image is None else f'"${_LOCAL_VARIABLE}"'


def staging_lines(site: Site) -> list[str]:
    """Return the lines of a job's script that say where stages copy their inputs, after all others."""
    match site.staging:
        case "none":
            return []
        case "scratch":
            folder = in_double_quotes(f"{site.scratch}/inputs")
            # Where it cannot be made, inputs are read in place.
            return [f'export {CACHE_VARIABLE}={folder}; mkdir -p "${CACHE_VARIABLE}" || unset {CACHE_VARIABLE}']
        case "node_local":
            if site.image is not None:  # in the folder that is visible inside
                return [f'export {CACHE_VARIABLE}="${_LOCAL_VARIABLE}/inputs"']
            place = in_double_quotes(site.node_local)
            return [f'[ -z {place} ] || export {CACHE_VARIABLE}={place}/kdgat-inputs-"$(id -u)"']


def clearing_lines(site: Site) -> list[str]:
    """Return the lines of a job's script that come before the site's own, which may bind folders on purpose.

    What the person who submits has set for other containers would show stages more of the machine, or other code.
    """
    if site.image is None:
        return []
    named = [f"${{!{prefix}*}}" for prefix in PERSONAL_PREFIXES]
    return [f"unset {' '.join([*PERSONAL_VARIABLES, *named])}"]


def container_lines(site: Site, image_stamp: str = "") -> list[str]:
    """Return the lines of a job's script that prepare the node for the image, after the site's own.

    Args:
        site: names the image and the folder on the node's own disk.
        image_stamp: size and time of the image's file when it was checked; empty: it could not be.
    """
    if site.image is None:
        return []
    caches = {**CACHES, **GPU_CACHES}
    return [
        f'export PATH="${{KDGAT_APPTAINER:+$(dirname "$KDGAT_APPTAINER"):}}$PATH:{INSTALLED.parent}"',
        f"unset {' '.join([*HOST_VARIABLES, *CUTTING_VARIABLES])}",
        *(f"export {name}={shlex.quote(value)}" for name, value in apptainer_variables().items()),
        *_local_lines(site),
        *_image_lines(site.image, image_stamp),
        # One for each state of the image: numba tells sources apart by time and size, which images may share.
        f'caches="${_LOCAL_VARIABLE}/caches-${{{IMAGE_STARTED_VARIABLE}/:/-}}"; mkdir -p "$caches"',
        # Apptainer puts the host's variables in place after the image's own lines have run: those cannot know them.
        f'export APPTAINERENV_TMPDIR="${_LOCAL_VARIABLE}"',
        "export " + " ".join(f'APPTAINERENV_{name}="$caches/{folder}"' for name, folder in caches.items()),
        _JOB_END,
    ]


def _local_lines(site: Site) -> list[str]:
    """Make a folder of ours in the site's: compiled code is loaded from there, and the node's /tmp holds others' files.

    Outside TMPDIR stays the site's folder, by which its other keys may name the image.
    """
    listed, folder = f"node_local: {site.node_local}", f"${_LOCAL_VARIABLE}"
    ours = f'mkdir -p -m 700 "{folder}" && [ -O "{folder}" ] && [ ! -L "{folder}" ] && chmod 700 "{folder}"'
    another = f'{_LOCAL_VARIABLE}=$(mktemp -d "${{TMPDIR%/}}/kdgat-XXXXXXXX")'
    return [
        f"export TMPDIR={_word(site.node_local)}",
        '[ -n "$TMPDIR" ] && mkdir -p "$TMPDIR" || '
        + ending(f"{listed}: it is empty or cannot be made", "name a folder that each node has"),
        f'{_LOCAL_VARIABLE}="${{TMPDIR%/}}/kdgat-$(id -u)"',
        f"{{ {ours}; }} || {another} || "
        + ending(f"{listed}: no folder can be made in it", "name one you can write to"),
        f'case "{folder}" in *[:,]*) '
        + ending(f"{listed}: Apptainer takes ':' and ',' for the end of a path", "name a folder without them")
        + ";; esac",
    ]


def _image_lines(image: str, stamp: str) -> list[str]:
    """Note which file the job starts, and end it where that is not the one that was compared with this kdgat."""
    started = f"${IMAGE_STARTED_VARIABLE}"
    lines = [f"export {IMAGE_STARTED_VARIABLE}=$(stat -Lc %s:%Y {_word(image)})"]
    if stamp:
        lines += [
            f'[ -n "{started}" ] || ' + ending(f"image {image} cannot be read", "see that each node has it"),
            f'[ "{started}" = {shlex.quote(stamp)} ] || '
            + ending(
                f"image {image} {IMAGE_CHANGED}: size and time were {stamp}, and are another",
                "leave a file that jobs wait for as it is, and copy images with their time (cp -p)",
            ),
        ]
    return lines


def ending(problem: str, fix: str) -> str:
    """Return a shell command that ends the job and says why."""
    return f'{{ echo {shlex.quote(problem)} "on $(uname -n);" {shlex.quote(fix)} >&2; exit 1; }}'


def in_double_quotes(text: str) -> str:
    """Quote what a site file says for the shell of the node, which puts in the variables that it names."""
    return '"' + re.sub(r"([\\\"`])", r"\\\1", text) + '"'


def _word(text: str) -> str:
    return in_double_quotes(text) if "$" in text else shlex.quote(text)
