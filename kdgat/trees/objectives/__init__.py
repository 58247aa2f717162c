"""What a pretraining without labels predicts: how a tree goes on (`growth.py`), and who is above whom (`order.py`).

In: `TreeBatch` and embeddings. Out: losses; and the same quantities of baselines, so that a number says something.
"""
