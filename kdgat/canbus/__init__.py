"""Recordings of CAN traffic: found by dataset, read whatever their format, checked, imported.

In: log files (text, Parquet, of a vendor) below a data root, and a catalog of datasets (`datasets.yaml`); a live bus.
Out: `Messages`, one recording as arrays, with its bad rows counted and named; which recordings train and which test.
Read `messages.py` first, then `logs.py` (one file), `catalog.py` (a dataset), `stream.py` and `bus.py` (chunks of
files, and live).
"""
