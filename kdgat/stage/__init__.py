"""What a stage is: a process with a contract, run the same by hand, by a flow and in a job.

In: `spec.json` in a run directory. Out: `outcome.json`, artifacts, and an exit status; a stage that was killed is
resumed from its newest checkpoint by running it again. Nothing here knows of families, clusters or flows. Read
`spec.py` first, then `directory.py`, `outcome.py` and `runner.py`.
"""
