"""Geometric trees: neurons, rivers, vessels; pretraining without labels (GT-SSL), then classes or numbers from few.

In: SWC files, river lines, masks, or trees that are drawn (`reading`, `synthetic`). Out: encoders that were
pretrained by growth and order (`models`, `training`), what they know, beside baselines (`evaluation`). Read
`structure/tree.py` first: a tree is parents in preorder and places; then `plan.py` and `stages.py`.
"""
