"""The flow `lap`: warm starts for linear assignment, trained stage after stage by the size of the matrix."""

from flows.training import training_flow
from kdgat.lap.config import LapConfig
from kdgat.lap.family import FAMILY


@training_flow(FAMILY, LapConfig(), overrides="`training.max_epochs=5` or `stages=[small_512_only]`; the same as `-O`")
def lap() -> None:
    """Train networks that predict duals of assignment problems, from small matrices to large; see `kdgat plan lap`."""
