"""Recordings of CAN traffic: found by dataset, read whatever their format, checked, imported.

In: log files (text, Parquet, or of a vendor) below a data root, and a catalog of datasets (`datasets.yaml`). Out:
`Messages`, one recording as arrays, with its bad rows counted and named; which recordings train and which test. Read
`messages.py` first, then `logs.py` (one file), `catalog.py` (a dataset), and `stream.py` and `bus.py` (chunks, of
files and live).
"""
