"""Copies of what training measures, for TensorBoard, MLflow and Weights & Biases, made by a process beside training.

In: the rows of `metrics.jsonl`, which are the record. Out: runs of those services, and `loggers.json`, which says what
is there. Read `beside.py` first, then `follow.py` (the process itself) and `services.py` (by Lightning).
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.training.loggers.beside import End as End
    from kdgat.training.loggers.beside import Loggers as Loggers

__all__, __getattr__, __dir__ = lazy_names(__name__)
