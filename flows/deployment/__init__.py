"""`make deploy`: a Prefect server, a worker and deployments for this user, and their end.

In: `deployments/prefect.yaml` and the environment. Out: processes that outlive the command, a pool with limits per
dataset, and schedules; `make undeploy` ends exactly what was started. Read `lifecycle.py` first, then `installation.py`
(where everything lies) and `server_content.py`.
"""
