"""A few inputs of each target; `make fuzz` tries as many as are asked for."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

EXAMPLES = 8


@pytest.mark.parametrize(
    "target", [target for target in TARGETS if not target.processes], ids=lambda target: target.name
)
def test_damaged_input_is_read_or_refused_in_a_sentence(tmp_path: Path, target: Target) -> None:
    """No traceback of ours, no hang, and nothing written beside what was read."""
    assert fuzz(target, EXAMPLES, None, tmp_path) >= 1


@pytest.mark.processes
@pytest.mark.parametrize("target", [target for target in TARGETS if target.processes], ids=lambda target: target.name)
def test_damaged_input_is_read_or_refused_by_a_process(tmp_path: Path, target: Target) -> None:
    """The same for readers that work in a process of their own, which may die."""
    assert fuzz(target, 2, None, tmp_path) >= 1
