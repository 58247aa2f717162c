"""Synthetic trees: neurons and rivers of known classes, grown by laws whose statistics are known.

In: a class's name and a seed. Out: `SyntheticTree`, a tree beside each node's true state, and what no prediction of
growth can beat on average. Read `law.py` first (what grows where), then `generation.py`, `classes.py`, `dataset.py` and
`optimum.py`.
"""
