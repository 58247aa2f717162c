"""Recordings of CAN traffic: found by dataset, read whatever their format, checked, imported.

In: log files (text or Parquet) below a data root, and a catalog of datasets (`datasets.yaml`). Out: `Messages`, one
recording as arrays, with its bad rows counted and named; which recordings train and which test. Read `messages.py`
first, then `logs.py` (one file) and `catalog.py` (a dataset).
"""
