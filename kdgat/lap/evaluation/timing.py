"""Times that can be compared on a machine that does other things too.

Methods take turns on the same instance in the same process, so that a slow minute hurts them all alike; each round
begins with another one; one processor core each; what is compiled at its first call has been called before.
"""

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kdgat.base import num_usable_cores
from kdgat.lap.evaluation.results import Machine
from kdgat.stage import package_version
from kdgat.stage.provenance import processor_name

T = TypeVar("T")

PACKAGES = ("scipy", "lapx", "numba", "numpy", "torch")


@dataclass
class Timed(Generic[T]):
    """What a method returned, and the seconds of its calls."""

    result: T  # of the first call
    seconds: list[float] = field(default_factory=list)
    results: list[T] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Return the median in seconds."""
        return statistics.median(self.seconds)


def take_turns(
    methods: Mapping[str, Callable[[], T]], repeats: int, warm_ups: int, patience_s: float
) -> dict[str, Timed[T]]:
    """Call every method `repeats` times, in turn.

    Args:
        methods: name -> what to call.
        repeats: calls that count.
        warm_ups: rounds before them that do not.
        patience_s: a method whose calls have taken this long in all is not called again, so that one that takes
            seconds does not keep the others waiting; the call that reached it counts, even if it was to warm up.
    """
    if repeats < 1 or warm_ups < 0:
        raise ValueError(f"repeats {repeats} must be at least 1 and warm_ups {warm_ups} at least 0")
    found: dict[str, Timed[T]] = {}
    spent = dict.fromkeys(methods, 0.0)
    names = list(methods)
    for turn in range(-warm_ups, repeats):
        for name in _rotated(names, turn):
            if name in found and spent[name] >= patience_s:
                continue
            started = time.perf_counter()
            result = methods[name]()
            seconds = time.perf_counter() - started
            spent[name] += seconds
            if turn >= 0 or spent[name] >= patience_s:
                timed = found.setdefault(name, Timed(result))
                timed.seconds.append(seconds)
                timed.results.append(result)
    return {name: found[name] for name in names}


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def describe_machine(num_threads: int = 1) -> Machine:
    """State what machine this is and which versions were measured."""
    return Machine(
        processor=processor_name() or platform.processor() or platform.machine(),
        num_cores=num_usable_cores(),
        num_threads=num_threads,
        versions={name: package_version(name) or "not installed" for name in PACKAGES},
    )
