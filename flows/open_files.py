"""How many jobs one process can watch: each holds connections, and pipes while it is submitted."""

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

FILES_PER_JOB: Final = 8  # 2 were measured with thirty jobs at once; one that is submitted or read needs some more
OWN_FILES: Final = 160  # of the flow itself, its Prefect client and what is opened for a moment


def watchable_jobs(num_jobs: int) -> int:
    """Raise this process's limit of open files as far as watching `num_jobs` needs; return how many it suffices for.

    Never more than is needed: Slurm hands the limit on to the jobs. A process that runs out of files can watch none of
    its jobs, not only the one too many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + num_jobs * FILES_PER_JOB
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return num_jobs
    granted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    if granted == needed:
        return num_jobs
    suffices_for = max(1, (granted - OWN_FILES) // FILES_PER_JOB)
    logger.warning(
        "%d open files are allowed here (ulimit -Hn), enough to watch %d jobs at once instead of %d",
        hard,
        suffices_for,
        num_jobs,
    )
    return suffices_for
