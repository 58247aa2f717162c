"""Windows of consecutive messages as graphs: identifiers are nodes, messages that follow each other are edges.

In: `Messages` of one recording, and a `WindowConfig` (size, stride). Out: `GraphColumns` for a graph store, and
`PooledStores`, several such stores behind one global index, from which training and evaluation draw. Read `graphs.py`
first; what a node and an edge carry of the messages' own past is in `features.py`.
"""
