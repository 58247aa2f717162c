"""The sections of the report of a run on trees: what pretraining has learned, and what it is worth with few labels.

In: `results.json` and what the stages of a run left behind. Out: sections of text, tables and figures for the page that
`kdgat.report` draws. Read `page.py` first.
"""
