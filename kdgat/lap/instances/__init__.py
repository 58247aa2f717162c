"""Assignment problems: drawn from distributions, read from other people's files, kept with proved labels in stores.

In: a distribution, a size and a seed, or a file of matrices. Out: `Instance` (a cost matrix) and `Record` (one with its
optimal matching and duals), in an HDF5 store that holds the matrices, or their seeds alone. Read `distributions.py`
first, then `records.py` and `store.py`. Users call a distribution a family.
"""
