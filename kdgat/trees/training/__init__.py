"""Training of the family: trees into stores, pretraining without labels, fine-tuning with them.

In: trees and configuration. Out: stores (`preparation.py`), weights (`pretraining.py`, `finetuning.py`). `source.py`
fills batches by their paths; `memory.py` says what a batch will take before one is made.
"""
