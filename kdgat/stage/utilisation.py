"""How busy the GPU of a stage is: what the driver's own tool says every few seconds, while the stage runs."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from kdgat.stage.gpus import num_given_gpus, visible_gpus
from kdgat.stage.work import Work

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5
END_S: Final = 5.0


@contextmanager
def gpu_sampled(work: Work, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Note in `work` the mean share of time in which the GPU computed; nothing where the stage was given none.

    Where the driver's tool is missing, or does not know (parts of a GPU), the log says so.
    """
    gpus = visible_gpus(environment) if num_given_gpus(environment) else ()
    if not gpus:
        yield
        return
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            [*command, f"--id={gpus[0]}", f"--loop={INTERVAL_S}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError as error:
        logger.info("how busy the GPU is stays unknown: nvidia-smi cannot be started (%s)", error)
        yield
        return
    reader = threading.Thread(target=_read, args=(process, work), daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        reader.join(END_S)
        if work.gpu_busy is None:
            logger.info("how busy the GPU was is not known: nvidia-smi gave no number for %s", gpus[0])
        else:
            logger.info("the GPU computed %.0f%% of the time", 100 * work.gpu_busy)


def _read(process: subprocess.Popen[str], work: Work) -> None:
    """Keep the mean of what is printed, per cent on a line each; [N/A] for parts of a GPU."""
    total = count = 0
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.strip().isdigit():
                total, count = total + int(line), count + 1
                work.gpu_busy = total / count / 100
