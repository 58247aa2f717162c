"""dask-jobqueue, imported without what its import does to Ctrl-C: an exit at once, with status 0."""

import signal

_on_interrupt = signal.getsignal(signal.SIGINT)
try:
    from dask_jobqueue.slurm import SLURMCluster, SLURMJob
finally:
    signal.signal(signal.SIGINT, _on_interrupt)

__all__ = ["SLURMCluster", "SLURMJob"]
