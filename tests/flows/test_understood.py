"""Slurm and the filesystem answer anything for a while: no job is cancelled, no attempt closed, no stage failed."""

import ast
import errno
import os
import random
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.watcher import NUM_WAITING, Watcher
from kdgat.cluster import AttemptLedger, EndKind, Slurm, slurm
from kdgat.cluster.ending import AttemptEnd, Because
from kdgat.cluster.scheduler import OVER_STATES, JobStatus
from kdgat.cluster.script import job_name
from kdgat.run import OutputDirectory
from kdgat.stage import Finished
from tests.flows.places import Place
from tests.support.fake_slurm import GOES_ON, OddCommands
from tests.support.faults import fail_at

REPOSITORY = Path(__file__).parents[2]
TRAINS_S = 400.0


class OddPlace(Place):
    """A place whose command speaks to Slurm by text, and sees the run directory as `error` lets it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, chance: random.Random) -> None:
        super().__init__(path)
        self.commands = OddCommands(self.slurm, chance)
        patch.setattr(slurm, "_run", self.commands)
        self.attempts.queue.scheduler = Slurm()
        self.chance, self.share, self.num_errors = chance, 0.0, 0
        self.connects = True
        fail_at(self.directory.path, patch, self.error)
        submit = self.jobs.submit

        def submitted(arguments: Mapping[str, Any]) -> str:
            job_id = submit(arguments)
            self.jobs.workers[job_id].trains_s, self.jobs.workers[job_id].connects = TRAINS_S, self.connects
            return job_id

        patch.setattr(self.jobs, "submit", submitted)

    def error(self) -> OSError | None:
        if self.slurm.clock.is_elsewhere or self.chance.random() >= self.share:
            return None  # the node sees its files
        self.num_errors += 1
        number = self.chance.choice(list(errno.errorcode))
        return OSError(number, os.strerror(number))

    def be_odd(self, of_slurm: float, of_files: float) -> None:
        self.commands.share, self.share = of_slurm, of_files


shares = st.sampled_from([0.02, 0.3, 1.0])


@given(
    seed=st.integers(0, 2**32),
    of_slurm=shares,
    of_files=shares,
    connects=st.booleans(),
    begins_s=st.sampled_from([2.0, 10.0, 60.0]),
    lasts_s=st.sampled_from([5.0, 120.0, 330.0]),
)
@settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
def test_whatever_is_answered_a_job_that_trains_is_watched_to_its_end(
    seed: int, of_slurm: float, of_files: float, connects: bool, begins_s: float, lasts_s: float
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        place = OddPlace(Path(folder), patch, random.Random(seed))
        place.connects = connects
        place.slurm.clock.after(begins_s, lambda: place.be_odd(of_slurm, of_files))
        place.slurm.clock.after(begins_s + lasts_s, lambda: place.be_odd(0.0, 0.0))
        assert isinstance(place.run().outcome, Finished)
        assert place.states == ["COMPLETED"]
        assert [(record.job_id, record.end) for record in place.records] == [("1", "Completed")]
        assert of_slurm < 1.0 or lasts_s < 100 or place.commands.num_odd + place.num_errors > 0
        assert len(place.lines) < 250  # each text is said once


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
def test_a_command_given_again_while_anything_is_answered_takes_its_job_over(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        place = OddPlace(Path(folder), patch, random.Random(seed))
        place.leave(20)
        place.commands.share = 1.0
        place.slurm.clock.after(90, lambda: place.be_odd(0.0, 0.0))
        assert isinstance(place.run().outcome, Finished)
        assert place.states == ["COMPLETED"]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
def test_the_chain_of_watchers_goes_on_whatever_is_answered(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        place = OddPlace(Path(folder), patch, random.Random(seed))
        place.commands.share = 1.0
        patch.setattr("flows.watcher.signal.signal", lambda number, handler: None)
        watcher = Watcher(OutputDirectory(folder), "5", Slurm())
        for _ in range(30):
            watcher._see_to_the_next()
            assert len(watcher._waiting()) in (0, NUM_WAITING)  # none of its name, or no answer


@pytest.mark.parametrize("state", GOES_ON)
def test_a_state_that_is_no_end_is_none(state: str) -> None:
    assert not JobStatus(state).is_over
    assert state not in OVER_STATES


@pytest.mark.parametrize("kind", EndKind)
def test_each_end_has_its_reason_and_what_goes_on_has_none(kind: EndKind) -> None:
    assert (AttemptEnd(kind, "").because is None) == (kind is EndKind.DETACHED)


def test_an_attempt_that_goes_on_cannot_be_closed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ledger = AttemptLedger(place.directory)
    record = ledger.open(None)
    with pytest.raises(ValueError, match="goes on"):
        ledger.close(record, AttemptEnd(EndKind.DETACHED, "SIGTERM"), None)  # type: ignore[arg-type]
    assert ledger.left_open() == [record]


def test_nothing_but_one_function_cancels_a_job_and_each_call_says_why() -> None:
    calls: dict[str, list[str]] = {"cancel": [], "cancel_jobs": [], "abandon": [], "scancel": []}
    for path in (found for folder in ("kdgat", "flows") for found in (REPOSITORY / folder).rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if re.search("cancel|abandon", source) else ():
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            text, place = ast.unparse(node), str(path.relative_to(REPOSITORY))
            if name in ("cancel_jobs", "abandon"):
                assert any(f"Because.{one.name}" in text for one in Because) or "because" in text, (place, text)
            if name in calls and not text.startswith(("self.client.", "begun.futures")):  # futures are no jobs
                calls[name].append(place)
            if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == "scancel":
                calls["scancel"].append(place)
    assert calls["cancel"] == ["kdgat/cluster/scheduler.py"]
    assert calls["scancel"] == ["kdgat/cluster/slurm.py"]
    assert set(calls["abandon"]) == {"flows/attempts.py", "flows/slurm_attempts.py", "kdgat/run/local.py"}
    assert set(calls["cancel_jobs"]) == {
        "flows/job_watch.py",
        "flows/site_probe.py",
        "flows/slurm_attempts.py",
        "flows/watcher.py",
    }


def test_the_same_directory_has_one_name_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "scratch/out").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "scratch")
    assert job_name(tmp_path / "home/out") == job_name(tmp_path / "scratch/out")
