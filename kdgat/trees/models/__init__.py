"""Encoders of trees: what a node's surroundings look like, the same however the tree is turned or moved.

In: `TreeBatch`. Out: embeddings of nodes from their ancestors (`up`) and from their descendants (`down`), [N, H] each
(`encoder.py`). `paths.py` lists paths of third order, `geometry.py` says what is invariant of them, `message.py` reads
both. `classifier.py` names a tree's class by them, or by GIN, the baseline that sees no geometry.
"""
