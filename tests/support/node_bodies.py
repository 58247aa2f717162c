"""What runs on a worker in tests; imports nothing of Prefect, as what runs there for real."""

import os
import signal
import sys
from pathlib import Path


def prefect_modules(_: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("prefect", "prefect_dask")]


def double(number: int) -> int:
    return 2 * number


def refuse(number: int) -> int:
    raise KeyError(number)


def die_once(folder: str) -> str:
    path = Path(folder) / "died"
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "made by another worker"


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
