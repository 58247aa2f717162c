"""What encoders of trees know, and what those know that have to be beaten.

In: trees, embeddings, labels. Out: scores. `morphometrics.py` says what a morphologist would measure, `forest.py` what
a random forest makes of it.
"""
