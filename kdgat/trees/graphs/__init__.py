"""What networks see of a tree: columns of the graph store.

In: `Tree`. Out: `GraphColumns` of one schema, lengths in units of the dataset's median edge (`columns.py`), and
batches of them with their parents (`batch.py`). Several trees may span one network (`networks.py`).
"""
