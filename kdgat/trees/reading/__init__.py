"""Trees from files: neurons, rivers and vessels, one by one or as a folder with a table of labels.

In: SWC files (`swc`), lines of a map (`rivers`), masks (`masks`). Out: `ReadTree`, a tree and notes on what had to be
repaired, or `ReadError` with file, line and fix. Read `result.py` first, then `collection.py`, which finds the files.
"""
