"""Stores of windows as one source, and the inputs of a stage: what models, training and evaluation read alike."""
