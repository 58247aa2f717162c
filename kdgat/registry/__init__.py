"""Models that were trained, and which of them is in service: a plain directory that several processes may use.

In: files of a model, with metrics and provenance. Out: entries that never change, and a promotion: whether a new model
takes the place of the one in service, as a pure function of what all score on the same data. Read `promotion.py`
first, then `registry.py`.
"""
