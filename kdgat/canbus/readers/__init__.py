"""Readers of recorded CAN traffic, one module for each kind of file.

In: the path of a recording. Out: `Rows`, columns with a status per row, good and bad ones alike. Read `rows.py` first;
`detect.py` finds the kind of a file, `text.py` the layout of a log of lines. `csv.py`, `candump.py`, `asc.py` and
`trc.py` parse lines at memory speed, with the words and numbers of `numbers.py`.
`tools` reads what other tools write, a line after the other.
"""
