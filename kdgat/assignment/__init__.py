"""The exact solver: shortest augmenting paths from the best dual seed at hand, with a certificate of optimality.

In: a cost matrix, a mask of forbidden pairs, perhaps duals. Out: `Assignment`: the matching, duals that prove it, and
counters of the work done. A good seed makes it quicker, a bad one costs two passes, none makes it wrong. Read
`exact.py` first, then `certificate.py`, `core.py` and `kernels.py`; `reoptimiser.py` for problems that come again,
`large.py` for those without a matrix. No network is imported here.
"""
