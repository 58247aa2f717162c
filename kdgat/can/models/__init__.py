"""The networks of the CAN family: graph attention, variational graph autoencoder, and what joins the two.

In: mini-batches of window graphs (`kdgat.graphs.batches.Batch`). Out: logits and reconstruction errors per window and
per identifier; `scoring.py` builds a model from its weights file and runs it over many windows. Read `attention.py`
first, then `autoencoder.py` and `fusion.py`; `attention_triton.py` is the same attention on a GPU.
"""
