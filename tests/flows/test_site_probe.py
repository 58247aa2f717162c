"""The job of `kdgat doctor --site` under a Slurm of shell scripts, whose one job never runs."""

import os
from pathlib import Path

import pytest

from flows import node_image
from flows.site_probe import check_torch, try_nodes
from kdgat.cluster import Resources, Site
from kdgat.cluster.filesystem import Check

# The job bears the name in its script, and is over once it was cancelled.
PROGRAMS = {
    "sbatch": 'for script; do :; done; cp "$script" $HERE/script; sed -n "s/^#SBATCH -J //p" "$script" > $HERE/name; '
    "ANSWER",
    "squeue": 'echo "16|RUNNING|n1|None|another"; echo "17|PENDING||Priority|$(cat $HERE/name)"',
    "scontrol": "state=PENDING; [ ! -e $HERE/cancelled ] || state=CANCELLED; "
    'echo "JobId=$4 JobName=x UserId=me($(id -u)) JobState=$state Reason=REASON NodeList=(null) ExitCode=0:0 "',
    "scancel": 'echo "$@" >> $HERE/cancelled',
}
SITE = Site(name="scripts", scheduler="slurm", account="PAS0001", prologue=("export OF_SITE=1",), poll_interval_s=0.1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "out").mkdir()
    return tmp_path


def probe(here: Path, answer: str = "echo Submitted batch job 17", reason: str = "Priority") -> tuple[Check, list[str]]:
    """Try the nodes of a site whose `sbatch` answers so; return the one line, and what was said meanwhile."""
    [check], said = probed(SITE, here, answer, reason)
    return check, said


def probed(
    site: Site, here: Path, answer: str = "echo Submitted batch job 17", reason: str = "Priority", gpus: int = 0
) -> tuple[list[Check], list[str]]:
    """Try the nodes of a site."""
    (here / "bin").mkdir()
    for name, script in PROGRAMS.items():
        path = here / "bin" / name
        path.write_text(f"#!/bin/sh\n{script.replace('ANSWER', answer).replace('REASON', reason)}\n")
        path.chmod(0o755)
    said: list[str] = []
    checks = try_nodes(site, here / "out" / "run", 1.5, said.append, gpus)
    assert list((here / "out").iterdir()) == []
    return checks, said


def cancelled(here: Path) -> list[str]:
    path = here / "cancelled"
    return path.read_text().splitlines() if path.exists() else []


def test_a_job_that_waits_too_long_is_the_one_that_is_cancelled(here: Path) -> None:
    check, said = probe(here)
    assert (check.state, cancelled(here)) == ("warning", ["17"])
    assert "job 17" in check.found
    assert "PENDING Priority" in check.found
    assert "--wait" in check.fix
    assert [text for text in said if text.startswith("job 17: PENDING Priority; Ctrl-C cancels it")]


def test_the_job_is_made_as_that_of_a_stage(here: Path) -> None:
    probe(here)
    script = (here / "script").read_text()
    for words in (
        "#SBATCH -A PAS0001",
        "export OF_SITE=1",
        "--no-requeue",
        " -P -m kdgat.cluster.probe ",
        "umask 0077",
    ):
        assert words in script


def test_a_job_whose_number_sbatch_does_not_say_is_found_by_its_name(here: Path) -> None:
    check, _ = probe(here, answer="echo welcome")
    assert "job 17" in check.found
    assert cancelled(here) == ["17"]


def test_a_job_that_would_wait_for_ever_is_wrong_with_slurms_reason(here: Path) -> None:
    check, _ = probe(here, reason="PartitionTimeLimit")
    assert (check.state, cancelled(here)) == ("wrong", ["17"])
    assert "PartitionTimeLimit" in check.found


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("Invalid account or account/partition combination specified", "wrong"),
        ("Unable to contact slurm controller (connect failure)", "warning"),
        ("Job violates accounting/QOS policy (job submit limit)", "warning"),
    ],
)
def test_a_refusal_is_told_in_sbatchs_words(words: str, state: str, here: Path) -> None:
    answer = f'echo "sbatch: error: Batch job submission failed: {words}" >&2; rm $HERE/name; exit 1'
    check, _ = probe(here, answer=answer)
    assert (check.state, cancelled(here)) == (state, [])
    assert check.found == f"sbatch: Batch job submission failed: {words}"
    assert "jobs of stages" in check.fix


def test_a_folder_that_no_job_can_write_into_is_refused_before_sbatch(here: Path) -> None:
    out = here / "out" / "with space"
    out.mkdir()
    [check] = try_nodes(SITE, out, 1.5, lambda text: None)
    assert check.state == "wrong"
    assert "without spaces" in check.found
    assert list(out.iterdir()) == []


def test_what_the_torch_of_the_nodes_lacks_is_told_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {"torch": "2.13.0+cu130", "cuda": "13.0", "architectures": ["sm_75", "sm_120"], "driver": 580}
    monkeypatch.setattr(node_image, "torch_of_python", lambda python: built)
    asked = Resources(walltime_s=60, memory_mib=1, gpus=1, gpu_type="v100")
    [check] = check_torch(SITE, asked)
    assert check.state == "wrong"
    assert check.fix.startswith("use the image for CUDA 12")
    [check] = check_torch(SITE, asked.model_copy(update={"gpu_type": "t4"}))
    assert check.state == "good"
    [check] = check_torch(SITE, asked.model_copy(update={"gpu_type": "gold"}))
    assert check.state == "warning"


def test_a_job_that_asks_for_gpus_says_so_in_its_script(here: Path) -> None:
    site = SITE.model_copy(update={"gpu_type": "v100", "gpu_partition": "cards"})
    [check], _ = probed(site, here, gpus=1)
    assert check.state == "warning", "it waits"
    script = (here / "script").read_text()
    for words in ("#SBATCH --gres=gpu:v100:1", "#SBATCH -p cards", "KDGAT_GPUS=1"):
        assert words in script
