"""What would be handed to sbatch, as text, with nothing started."""

import tempfile
from pathlib import Path
from typing import Final

from dask_jobqueue.slurm import SLURMJob

from kdgat.cluster.resources import Resources
from kdgat.cluster.script import cluster_arguments
from kdgat.cluster.site import Site

ADDRESS: Final = "tls://FLOW:PORT"  # where the flow will listen, once it runs


def job_script(site: Site, resources: Resources, directory: Path, log_directory: Path) -> str:
    """Return the script of the job that would run the stage in `directory`.

    What the stage sees of the machine inside a container image is bound when its inputs are known, and left out here.
    """
    arguments = cluster_arguments(site, resources, directory, log_directory)
    with tempfile.TemporaryDirectory() as folder:  # a job makes its log directory as soon as it is described
        job = SLURMJob(scheduler=ADDRESS, name="0", **{**arguments, "log_directory": folder})
        return str(job.job_script()).replace(folder, str(log_directory))
