"""How a fit ended."""

from dataclasses import dataclass

from kdgat.stage.outcome import Paused


@dataclass(frozen=True)
class FitResult:
    """How a fit ended; if it was not paused, the module holds the best weights."""

    paused: bool
    reason: str  # why it paused or stopped
    checkpoint: str  # newest one, relative to the run directory
    best_epoch: int
    best_metric: float
    epochs: int  # epochs completed
    metrics: dict[str, float]  # of the best epoch
    history: list[dict[str, float]]
    needed_s: float | None = None  # how long a job must last at least, if this one was too short to train in

    def as_paused(self) -> Paused:
        """Return the outcome of a stage whose fit paused."""
        return Paused(checkpoint=self.checkpoint, reason=self.reason, needed_s=self.needed_s)
