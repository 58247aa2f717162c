"""Errors that a stage can end with; the runner turns each into a kind of `Failed`."""

from typing import Final

from kdgat.base import UserError


class RunDirectoryError(UserError):
    """A run directory lacks a file, holds a damaged one, or belongs to another spec."""


class RunDirectoryMissingError(RunDirectoryError):
    """There is no run directory, as this machine sees it."""


class StageInputError(UserError):
    """An input file is missing or is not the one that the spec names."""


class StageBusyError(UserError):
    """Another process owns the run directory."""


TAKEN_OVER: Final = "was taken over by pid"  # who has it now goes on with it


class OwnerLostError(RuntimeError):
    """Another process took the run directory over; this one must not write to it any more."""


class EnvironmentFaultError(RuntimeError):
    """What is around the stage is at fault, not the stage: a node without its filesystem, a GPU that is not there."""


class StopRequested(BaseException):
    """SIGTERM, SIGUSR1 or SIGINT arrived while no loop was there to look at the flag."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name
