import json

from kdgat.training.capabilities import find_capabilities
from tests.cli.run_kdgat import run_kdgat


def test_capabilities_are_printed_as_a_table_that_says_why_not() -> None:
    done = run_kdgat("capabilities")
    assert done.returncode == 0, done.stderr
    for capability in find_capabilities():
        assert capability.name in done.stdout
        assert capability.detail in done.stdout


def test_capabilities_are_printed_as_json() -> None:
    done = run_kdgat("capabilities", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [capability._asdict() for capability in find_capabilities()]
