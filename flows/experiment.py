"""The flow `experiment`: a file with a LightningModule and its data in, trained and evaluated models out."""

from flows.training import training_flow
from kdgat.experiment.family import FAMILY


@training_flow(FAMILY)
def experiment() -> None:
    """Train and evaluate the LightningModule of a file; see `kdgat plan FILE` for the stages."""
