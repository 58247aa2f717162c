"""The frame of every report: one HTML file that opens from disk without a network.

In: sections of a family (text, tables, figures) and what the stages of a run logged. Out: the page, with training
curves and provenance, which are the same for all families; nothing here names a family. Read `document.py` first, then
`style.py`.
"""
