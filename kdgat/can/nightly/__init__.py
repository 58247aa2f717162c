"""Retraining every night: which recordings are new, which run they need, and whether its model is better.

In: an inbox, the data root, and a registry of models. Out: a run directory, a comparison of the new model with the one
in service on recordings that neither was trained on, and a report; `flows/nightly.py` executes it. Read `run.py` first,
then `new_recordings.py`, `comparison.py` and `report.py`.
"""
