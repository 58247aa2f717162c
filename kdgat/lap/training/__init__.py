"""From instances to trained weights, size after size: stores, the loss, and what stages take in memory and hours.

In: a `LapConfig` and files of instances. Out: graph stores (`preparation.py`), weights (`objective.py` is what they
minimise), and the plan's footprint: `memory.py` and `schedule.py` say which stages share a job. Read `preparation.py`
first, then `objective.py`.
"""
