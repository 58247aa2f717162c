"""How a worker's Python is started on a node: as it is there, or inside the site's container image.

Inside an image its own kdgat runs, not the checkout; of the node it sees what `kdgat.cluster.binds` lists, the folder
on the node's own disk, and the control groups, in which the kernel counts what it killed for memory.
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kdgat.cluster.binds import Bind
from kdgat.cluster.memory import CGROUP_ROOT
from kdgat.cluster.site import Site
from kdgat.stage.privileges import apptainer_variables
from kdgat.stage.provenance import IMAGE_STARTED_VARIABLE

# Where containers/install-apptainer.sh puts it, which is in nobody's PATH.
INSTALLED_FOLDER: Final = Path("/usr/local/lib/kdgat-apptainer/usr/bin")
# Apptainer puts the host's variables in place after the image's own lines have run: those cannot know TMPDIR.
_CACHES: Final = {
    "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "TORCH_HOME": "torch", "PREFECT_HOME": "prefect",
    "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "cuda",
}  # fmt: skip
# One for each state of the image: numba tells sources apart by time and size, which images may share. Compiled code is
# loaded from there, so it must be ours.
_CACHES_FOLDER: Final = (
    f'caches="$TMPDIR/kdgat-caches-$(id -u)-${{{IMAGE_STARTED_VARIABLE}/:/-}}"; mkdir -p -m 700 "$caches"; '
    '{ [ -O "$caches" ] && [ ! -L "$caches" ]; } || caches=$(mktemp -d "$TMPDIR/kdgat-caches-XXXXXXXX")'
)
# Of the host's Python, which is not in the image; and what would keep the job's variables or folders out of it.
_UNSET: Final = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD"),
    *("PYTHONPYCACHEPREFIX", "XDG_DATA_HOME"),
    *("APPTAINER_CLEANENV", "APPTAINER_CONTAIN", "APPTAINER_CONTAINALL"),
    *("SINGULARITY_CLEANENV", "SINGULARITY_CONTAIN", "SINGULARITY_CONTAINALL"),
)
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
        BindError: if something cannot be bound.
    """
    if site.image is None:
        return shlex.quote(default_python) if site.python is None else _word(site.python)
    # Neither the home folder, nor the command's, nor what lies in the node's /tmp: only what is named.
    words = ["apptainer", "exec", *(["--nv"] if uses_gpu else []), "--no-mount", "home,cwd,tmp"]
    if folder is not None:
        words += ["--pwd", str(folder)]
    shared = [*binds, Bind(CGROUP_ROOT, CGROUP_ROOT)]
    if "$" not in site.node_local:
        local = Path(site.node_local)
        shared.append(Bind(local, local, is_writable=True))
    # Upper folders first: a bind covers what was bound below it before.
    for bind in sorted(shared, key=lambda bind: len(bind.target.parts)):
        words += ["--bind", bind.describe()]
    said = [shlex.join(words)]
    if "$" in site.node_local:
        said += ["--bind", in_double_quotes(site.node_local)]
    return " ".join([*said, _word(site.image), _word(site.python or "python")])


def container_lines(site: Site) -> list[str]:
    """Return the lines of a job's script that prepare the node for the image, after the site's own."""
    if site.image is None:
        return []
    image = _word(site.image)
    return [
        f'export PATH="${{KDGAT_APPTAINER:+$(dirname "$KDGAT_APPTAINER"):}}$PATH:{INSTALLED_FOLDER}"',
        f"unset {' '.join(_UNSET)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in apptainer_variables().items()),
        f"export TMPDIR={_word(site.node_local)}",
        'mkdir -p "$TMPDIR"',
        f"export {IMAGE_STARTED_VARIABLE}=$(stat -Lc %s:%Y {image})",
        _CACHES_FOLDER,
        f"export {' '.join(f'APPTAINERENV_{name}=$caches/{folder}' for name, folder in _CACHES.items())}",
        _JOB_END,
    ]


def in_double_quotes(text: str) -> str:
    """Quote what a site file says for the shell of the node, which puts in the variables that it names."""
    return '"' + re.sub(r"([\\\"`])", r"\\\1", text) + '"'


def _word(text: str) -> str:
    return in_double_quotes(text) if "$" in text else shlex.quote(text)
