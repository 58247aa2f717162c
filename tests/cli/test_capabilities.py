import json
from collections.abc import Callable

from kdgat.can.capabilities import find_capabilities
from tests.support.command_line import Answer


def test_capabilities_are_printed_as_a_table_that_says_why_not(kdgat: Callable[..., Answer]) -> None:
    done = kdgat("capabilities", status=0)
    for capability in find_capabilities():
        assert capability.name in done.stdout
        assert capability.detail in done.stdout


def test_capabilities_are_printed_as_json(kdgat: Callable[..., Answer]) -> None:
    done = kdgat("capabilities", "--json", status=0)
    assert json.loads(done.stdout) == [capability._asdict() for capability in find_capabilities()]
