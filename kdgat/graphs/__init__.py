"""Many small graphs as long arrays: a store on HDF5, mini-batches gathered from it, and their plan.

In: columns of graphs, whatever a family keeps in them. Out: batches as tensors, without an object per graph. Read
`columns.py` first, then `store.py`, `batches.py` and `plans.py` (pure functions of seed and epoch).
"""
