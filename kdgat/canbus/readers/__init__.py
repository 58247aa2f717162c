"""Readers of recorded CAN traffic, one module per kind of file.

In: the path of a recording. Out: `Rows`, columns with a status per row, good and bad ones alike. Read `rows.py` first;
`formats.py` finds the kind of a file, `text.py` the layout of a log of lines, `kernels.py` parses it at memory speed.
"""
