"""The CAN family's sections of the report: detection per scenario, models compared, scores along recordings, data.

In: `results.json` and what the stages of a run left behind. Out: sections of text, tables and figures for the page that
`kdgat.report` draws. Read `page.py` first, which lists the sections in their order.
"""
