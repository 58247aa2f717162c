"""What follows from parents alone: preorder, depth, subtrees, ancestors, paths of third order; linear in nodes.

In: parents, and where nodes lie. Out: `Tree`, whose nodes stand in preorder, so that a subtree is a slice. Read
`tree.py` first, then `tours.py` (how order, depth and sizes are found without a loop over nodes).
"""
