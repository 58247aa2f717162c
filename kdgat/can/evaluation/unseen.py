"""Whether a recording holds much of one that a run was trained on: what is found in it is no news."""

from typing import TYPE_CHECKING

from kdgat.can.evaluation.finished_run import FinishedCanRun

if TYPE_CHECKING:
    from kdgat.canbus.catalog import RecordingFile
    from kdgat.canbus.near_copies import Blocks


def near_copy(run: FinishedCanRun, file: "RecordingFile") -> str | None:
    """Name the training recording of a run that a recording is in part a copy of, if there is one."""
    return None if file.blocks is None else copy_of_trained(run, file.blocks)


def copy_of_trained(run: FinishedCanRun, blocks: "Blocks") -> str | None:
    """Name the training recording of a run that holds many of the blocks of a recording, if there is one."""
    from kdgat.canbus.near_copies import holds_much_of

    for row in run.trained_recordings():
        if row.blocks and holds_much_of(blocks, row.blocks):
            return f"{row.scenario}/{row.name}"
    return None
