"""Groups of options: single options on the command line, one value in the command."""

import inspect
from typing import Any

import pytest

from kdgat.cli.options import ConfigOptions, JobOptions, RunOptions, spread
from kdgat.family import find_family


def test_a_command_takes_the_options_of_its_groups_one_by_one_and_gets_them_together() -> None:
    got: list[Any] = []

    def command(out: str, *, how: RunOptions, quiet_too: bool = False) -> None:
        got.extend([out, how, quiet_too])

    taken = spread(command)
    names = list(inspect.signature(taken).parameters)
    assert names[:3] == ["out", "site", "walltime"]
    assert {"pool", "detach", "quiet"} < set(names)
    assert "how" not in names
    options = dict.fromkeys(names, None) | {"out": "o", "site": "local", "pool": 3, "quiet_too": True}
    taken(**options)
    out, how, quiet_too = got
    assert (out, how.site, how.pool, quiet_too) == ("o", "local", 3, True)


def test_what_becomes_of_jobs_without_their_command_is_asked_of_runs_alone() -> None:
    site, _ = RunOptions(site="slurm-test", on_lost_flow="stop").read()
    assert site.on_lost_flow == "stop"
    site, request = JobOptions(site="slurm-test", memory="2G").read()
    assert (site.name, request.memory_mib) == ("slurm-test", 2048)


@pytest.mark.parametrize("more", [(), ("training.max_epochs=7",)])
def test_overrides_of_a_trial_win_over_those_of_the_command_line(more: tuple[str, ...]) -> None:
    options = ConfigOptions(override=["training.max_epochs=3"], seeds=[4])
    config = options.build(find_family("lap"), {}, more)
    assert config.seeds == (4,)
    assert config.model_dump()["training"]["max_epochs"] == (7 if more else 3)
