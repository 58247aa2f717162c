"""All targets."""

from tests.fuzz import assignments, command_line, protocol, recordings, trees

TARGETS = (
    *recordings.TARGETS,
    *trees.TARGETS,
    *assignments.TARGETS,
    *protocol.TARGETS,
    *command_line.TARGETS,
)
