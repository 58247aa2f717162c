"""Training that survives a kill at any moment: fit, checkpoints, deadline, weights.

In: a LightningModule, sources of batches, a `TrainingConfig`. Out: the best weights as a safetensors file, rows of
metrics, and checkpoints from which a resumed run computes bit for bit what an undisturbed one would have. Read
`fit.py` first, then `epoch.py`, then `checkpoints.py` and `deadline.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.training.allocator import use_expandable_segments as use_expandable_segments
    from kdgat.training.batch_size.limit import BatchLimit as BatchLimit
    from kdgat.training.batch_size.limit import GraphSizes as GraphSizes
    from kdgat.training.config import TrainingConfig as TrainingConfig
    from kdgat.training.deadline import Deadline as Deadline
    from kdgat.training.graph_source import GraphSource as GraphSource
    from kdgat.training.parts import Part as Part
    from kdgat.training.parts import Parts as Parts
    from kdgat.training.preparation import Preparation as Preparation
    from kdgat.training.random_state import seed_everything as seed_everything
    from kdgat.training.source import EpochSource as EpochSource
    from kdgat.training.stage import SeveralFits as SeveralFits
    from kdgat.training.stage import train_stage as train_stage
    from kdgat.training.threads import one_thread as one_thread
    from kdgat.training.weights import check_start as check_start
    from kdgat.training.weights import load_weights as load_weights

__all__, __getattr__, __dir__ = lazy_names(__name__)
