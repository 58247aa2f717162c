"""The Prefect flows: what starts when, and what is done about a stage that stopped.

In: a run, as a family plans it, and a site. Out: finished stages in an output directory, each attempt a task run and,
on a cluster, a job. Prefect and Dask are imported here and nowhere else. Read `stages.py` first (a run), then
`open_run.py` (what begins before there is a flow), `stage_work.py` and `attempts.py` (a stage to its end), and
`job_watch.py` (one job).
"""
