"""GPUs as whoever starts a stage sees them: without torch, whose import takes seconds and memory."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kdgat.stage.provenance import GPUS_VARIABLE, package_version

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
DRIVER_FOLDER: Final = Path("/proc/driver/nvidia/gpus")
ASK_TIMEOUT_S: Final = 20


def num_given_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs the job of this process asked for; 0 where nobody said."""
    text = environment.get(GPUS_VARIABLE, "")
    return int(text) if text.isdigit() else 0


def visible_gpus(environment: Mapping[str, str] = os.environ, driver_folder: Path = DRIVER_FOLDER) -> tuple[str, ...]:
    """Name the GPUs that stages on this machine can take, as `CUDA_VISIBLE_DEVICES` wants it.

    They are those of that variable; else those that `nvidia-smi` lists, or where that is not installed, those that the
    driver knows. None where torch is built without CUDA.
    """
    if (package_version("torch") or "").endswith("+cpu"):
        return ()
    stated = environment.get(VISIBLE_VARIABLE)
    if stated is not None:
        names = [name.strip() for name in stated.split(",")]
        ends = [place for place, name in enumerate(names) if name in ("", "-1")]  # CUDA ignores what follows
        return tuple(names[: ends[0]] if ends else names)
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return tuple(map(str, range(len(list(driver_folder.glob("*"))))))
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return gpus_of(listed.stdout)


def gpus_of(listing: str) -> tuple[str, ...]:
    """Read what `nvidia-smi -L` prints; a GPU that is cut into instances (MIG) stands for these.

    >>> gpus_of("GPU 0: NVIDIA A100 (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\\nGPU 1: A30 (UUID: GPU-3)")
    ('MIG-2', 'GPU-3')
    """
    found: list[str] = []
    for name in re.findall(r"\(UUID: ((?:GPU|MIG)-[^)\s]+)\)", listing):
        # The instances of a GPU are listed below it.
        if name.startswith("MIG-") and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(name)
    return tuple(found)
