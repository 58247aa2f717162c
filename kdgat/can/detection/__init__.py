"""A trained detector on anybody's traffic: from a log, a growing file or a bus to alarms with reasons.

In: messages, and a run, a registered model or an exported file. Out: alarms, as they come. Neither torch nor labels
have a part in it. Read `watch.py` first, then `loading.py`; what decides is `kdgat.can.evaluation.decision`, as in an
evaluation, and `explanation.py` says which identifiers, and why.
"""
