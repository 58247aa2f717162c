"""What attempts have shown about what a stage needs, and about nodes: it outlives the command that made them."""

from collections.abc import Iterable
from typing import Any, Final

from kdgat.cluster.decision import AttemptLimits
from kdgat.cluster.resources import Resources

# A node that is broken has been mended or drained by then; one that was cut off for a moment is not lost for weeks.
EXCLUDED_FOR_S: Final = 86_400.0


class Experience:
    """Resources that grew, and nodes that are left out; fed with each decision in its order.

    >>> asked, experience = Resources(walltime_s=3600, memory_mib=4096), Experience()
    >>> experience.change(asked, Resources(walltime_s=3600, memory_mib=6144))
    >>> experience.resources(asked, AttemptLimits())[0].describe()
    '01:00:00, 6G, 1 core'
    """

    def __init__(self) -> None:
        self.refused: Resources | None = None  # what Slurm grants no job
        self._steps: list[dict[str, Any]] = []  # what each escalation raised, with what it was raised to
        self._excluded_since: dict[str, float] = {}  # seconds since the epoch

    def change(self, before: Resources | None, after: Resources | None, *, undone: bool = False) -> None:
        """Note that what is asked for changed: it grew, or its last growth is undone."""
        if before is None or after is None or before == after:
            return
        if undone:
            self.refused = before
            if self._steps:
                self._steps.pop()
            return
        changed = {key: value for key, value in after if getattr(before, key) != value}
        if "gpu_type" in changed:  # replaces this one alone: whoever asks for another type by hand gets it
            changed["gpu_type"] = (before.gpu_type, after.gpu_type)
        self._steps.append(changed)

    def exclude(self, nodes: Iterable[str], before: Iterable[str], now: float) -> None:
        """Note which nodes are left out from now on; those that an attempt was made without stay so since then."""
        since = {node: self._excluded_since.get(node, now) for node in before}
        self._excluded_since = {node: since.get(node, now) for node in nodes}

    def excluded_nodes(self, now: float) -> frozenset[str]:
        """Return the nodes to leave out."""
        return frozenset(node for node, since in self._excluded_since.items() if now - since < EXCLUDED_FOR_S)

    def resources(self, asked: Resources | None, limits: AttemptLimits) -> tuple[Resources | None, Resources | None]:
        """Raise what a command asks for to what is needed; and what it would be without the last step, if that differs.

        What is asked for counts where it is more, and the limits of the site where they are less by now.
        """
        if asked is None:
            return None, None
        raised, before = _raise(asked, self._steps, limits), _raise(asked, self._steps[:-1], limits)
        return raised, before if before != raised else None


def _raise(asked: Resources, steps: list[dict[str, Any]], limits: AttemptLimits) -> Resources:
    amounts = {"memory_mib": asked.memory_mib, "walltime_s": asked.walltime_s}
    most = {"memory_mib": limits.max_memory_mib, "walltime_s": limits.max_walltime_s}
    gpu_type = asked.gpu_type
    for step in steps:
        for key in amounts.keys() & step.keys():
            granted = min(step[key], most[key] or step[key])
            amounts[key] = max(amounts[key], granted)
        if "gpu_type" in step and step["gpu_type"][0] == gpu_type:
            gpu_type = step["gpu_type"][1]
    return asked.model_copy(update={**amounts, "gpu_type": gpu_type})
