"""What a network sees of a cost matrix: each row joined to its nearest columns, and each column to its nearest rows.

In: a cost matrix and a `GraphConfig`. Out: columns for a graph store, batches of them for training, and neighbour lists
of fixed width for the models; `scaling.py` takes off what no answer depends on. Read `bipartite.py` first, then
`lists.py`.
"""
