"""What a cluster is asked for, what it did, and what follows from that; no scheduler library is imported here.

In: a site file, resource requests, and how an attempt ended. Out: job scripts, the state of jobs as Slurm tells it, and
a decision: again (with more memory, without that node), wait, or stop. Read `decision.py` first, a pure function with a
table of tests; then `site.py`, `ending.py` and `slurm.py`.
"""
