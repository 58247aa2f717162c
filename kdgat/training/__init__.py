"""Training that survives a kill at any moment: trainer, checkpoints, deadline, weights.

In: a LightningModule, sources of batches, a `TrainingConfig`. Out: the best weights as a safetensors file, rows of
metrics, and checkpoints from which a resumed run computes bit for bit what an undisturbed one would have. Read
`trainer.py` first, then `checkpoints.py` and `deadline.py`.
"""
