"""Training that survives a kill at any moment: trainer, checkpoints, deadline, weights."""
