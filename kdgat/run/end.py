"""How a run ended, for callers that know nothing of Prefect."""

from dataclasses import dataclass
from typing import Final, Literal

EXIT_STOPPED: Final = 130  # of a command whose run was stopped: what a shell reports after Ctrl-C


@dataclass(frozen=True)
class RunEnd:
    """State and message of a run that ended; `stopped` resumes when the same command is given again."""

    state: Literal["completed", "stopped", "failed"]
    message: str
