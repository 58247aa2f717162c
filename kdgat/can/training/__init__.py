"""From recordings to trained weights: the stage `prepare`, and what each model minimises and draws its windows from.

In: recordings, then graph stores and the weights of earlier stages. Out: graph stores, then weights, both as artifacts
of stages; how an epoch survives a kill is in `kdgat.training` and no business of this package. Read `preparation.py`
first, then `objective.py` (losses), `sampling.py` and `curriculum.py` (which windows, when).
"""
