"""The flow `can`: recorded CAN traffic in, a trained, calibrated and evaluated detector out."""

from flows.training import training_flow
from kdgat.can.family import FAMILY


@training_flow(FAMILY)
def can() -> None:
    """Train, calibrate and evaluate CAN intrusion detectors; see `kdgat plan can` for the stages."""
