"""The LAP family's sections of the report: what duals are worth before the solver, and what solving takes with them.

In: `results.json` and what the stages of a run left behind. Out: sections of text, tables and figures for the page that
`kdgat.report` draws. Read `page.py` first.
"""
