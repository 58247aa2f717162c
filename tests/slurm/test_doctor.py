"""`kdgat doctor --site` on a real Slurm: it leaves neither a job nor a file, whatever it finds."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import run_kdgat, started_kdgat
from tests.support.waiting import wait_until

SITE = Path(__file__).parents[2] / "deployments" / "sites" / "slurm-test.yaml"
TIMEOUT_S = 300.0


@pytest.fixture
def out(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Path]:
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []
    assert slurm.jobs() == []


def doctor(out: Path, site: str | Path, *words: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = run_kdgat("doctor", "--site", str(site), "--out", str(out), "--json", *words, timeout_s=TIMEOUT_S)
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}, done.stderr


def site_with(path: Path, line: str) -> Path:
    site = path / "other.yaml"
    site.write_text(SITE.read_text().replace("name: slurm-test\n", f"name: other\n{line}\n"))
    return site


def test_a_node_is_asked_by_a_job_and_all_that_a_run_needs_is_there(out: Path, slurm: PrivateSlurm) -> None:
    status, checks, said = doctor(out, "slurm-test")
    assert status == 0, said
    node = next(node for node in slurm.nodes if f"locks on {node}" in checks)
    of_node = {name: check["state"] for name, check in checks.items() if node in name}
    assert set(of_node.values()) == {"good"}, checks
    assert {
        *(f"{what} on {node}" for what in ("filesystem", "locks", "rename", "fsync", "clock of files", "packages")),
        *(f"{what} between here and {node}" for what in ("locks", "files")),
        *(f"clock of {node}", f"connection from {node}"),
    } <= of_node.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("modules: [nosuch]", "module nosuch cannot be loaded", marks=pytest.mark.nightly),
        ("python: /nosuch/python", "/nosuch/python: No such file or directory"),
        ("directives: [--constraint=nosuch]", "sbatch: Batch job submission failed: Invalid feature specification"),
    ],
)
def test_a_job_that_cannot_run_is_told_in_the_words_of_shell_or_slurm(
    line: str, words: str, out: Path, tmp_path: Path
) -> None:
    status, checks, _ = doctor(out, site_with(tmp_path, line))
    assert status == 1
    assert checks["nodes"]["state"] == "wrong"
    assert words in checks["nodes"]["found"]


@pytest.fixture
def drained(slurm: PrivateSlurm) -> Iterator[None]:
    slurm.command("scontrol", "update", "nodename=ALL", "state=drain", "reason=test")
    yield
    slurm.command("scontrol", "update", "nodename=ALL", "state=resume")


@pytest.mark.usefixtures("drained")
def test_a_job_that_still_waits_is_cancelled_and_that_is_no_fault_of_the_site(out: Path) -> None:
    status, checks, said = doctor(out, "slurm-test", "--wait", "0.05")
    assert status == 0
    assert checks["nodes"]["state"] == "warning"
    assert "PENDING" in checks["nodes"]["found"]
    assert "Ctrl-C cancels it" in said


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_cancels_the_job_and_what_was_found_before_is_printed(
    number: signal.Signals, out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with started_kdgat(log, "doctor", "--site", "slurm-test", "--out", str(out)) as process:
        wait_until(lambda: "PENDING" in log.read_text(), "the job in the queue", log=log.read_text)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 130
    assert "cancelling job" in log.read_text()
    assert "not tried: stopped" in log.read_text()
