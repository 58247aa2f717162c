"""What the builder of an image and whoever starts stages in it must say alike: folders, and whose variables count."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PREFIX: Final = "/opt/kdgat"  # of Python and kdgat inside an image
# Where containers/install-apptainer.sh puts it, which is in nobody's PATH.
INSTALLED: Final = Path("/usr/local/lib/kdgat-apptainer/usr/bin/apptainer")
# Compilers and libraries that keep files: on the node, because home may be missing, slow or shared by every job.
CACHES: Final = {
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "TORCH_HOME": "torch",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
    "PREFECT_HOME": "prefect",
}
GPU_CACHES: Final = {"CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "cuda"}
_NAMES: Final = ("APPTAINER", "SINGULARITY")  # it heeds the variables of both
# Of the host's Python: what they lead to is not in the image, or is not meant for it.
HOST_VARIABLES: Final = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD"),
    *("PYTHONPYCACHEPREFIX", "XDG_DATA_HOME"),
)
# What would keep the job's variables or folders out of the image.
CUTTING_VARIABLES: Final = tuple(f"{name}_{key}" for name in _NAMES for key in ("CLEANENV", "CONTAIN", "CONTAINALL"))
# Settings of a person's shell that would show an image more of the machine, or other code, than what kdgat names.
PERSONAL_VARIABLES: Final = tuple(
    f"{name}_{key}" for name in _NAMES for key in ("BIND", "BINDPATH", "MOUNT", "HOME", "OVERLAY", "SCRATCH", "WORKDIR")
)
PERSONAL_PREFIXES: Final = tuple(f"{name}ENV_" for name in _NAMES)


def cache_folder(name: str) -> Path:
    """Return where this user keeps things of a kind between commands: below XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdgat" / name


def without_personal_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a container sees nothing of the host's Python and of a person's own settings."""
    unwanted = {*HOST_VARIABLES, *CUTTING_VARIABLES, *PERSONAL_VARIABLES}
    return {
        name: value
        for name, value in environment.items()
        if name not in unwanted and not name.startswith(PERSONAL_PREFIXES)
    }
