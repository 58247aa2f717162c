from pathlib import Path

import pytest
import yaml

from kdgat.canbus.simulation import write_dataset
from kdgat.cli.options import RunOptions
from kdgat.cluster import Site, load_site
from tests.support.command_line import kdgat


def test_sites_are_listed_from_any_folder(tmp_path: Path) -> None:
    done = kdgat("site", "list", folder=tmp_path, status=0)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "slurm" in lines["osc-pitzer"]
    assert "memory 363G" in lines["osc-pitzer"]
    assert set(lines) == {"site", "local", "osc-ascend", "osc-pitzer"}
    every = {line.split()[0] for line in kdgat("site", "list", "--all", folder=tmp_path, status=0).stdout.splitlines()}
    assert every - set(lines) == {"example", "slurm-test", "slurm-test-image"}


def test_a_wrong_site_file_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.yaml").write_text("gpu_request: gress")
    monkeypatch.setenv("KDGAT_SITES", str(tmp_path))
    done = kdgat("site", "list", status=0)
    assert "gress" in done.stdout
    assert "osc-pitzer" in done.stdout


def test_what_is_shown_of_a_site_is_a_site_file() -> None:
    done = kdgat("site", "show", "osc-pitzer", status=0)
    assert Site.model_validate(yaml.safe_load(done.stdout)) == load_site("osc-pitzer")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "slurm-tst"], "did you mean 'slurm-test'"),
        (["--site", "slurm-test", "--walltime", "12:99:00"], "walltime='12:99:00' has 99 minutes"),
        (["--site", "slurm-test", "--memory", "128G"], "--memory 128G is above what site slurm-test grants"),
        (["--site", "slurm-test", "--cores", "0"], "cores=0"),
        (["--site", "slurm-test", "--gpus", "-1"], "gpus=-1"),
        (["--walltime", "2:00:00", "--gpus", "1"], "--walltime 02:00:00, --gpus 1: with --site local"),
    ],
)
def test_wrong_resources_are_refused_before_anything_is_started(words: list[str], said: str, tmp_path: Path) -> None:
    for command in (
        ("plan", "can"),
        ("train", "can", "--dataset", "a", "--data-root", "b", "--out", str(tmp_path / "o")),
    ):
        assert said in kdgat(*command, *words, status=1).stderr
    assert not (tmp_path / "o").exists()


def test_training_on_a_cluster_is_refused_where_there_is_no_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, "synthetic", "tiny")
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    words = ("--dataset", "synthetic", "--data-root", str(tmp_path), "--out", str(out), "--site", "slurm-test")
    done = kdgat("train", "can", *words, status=1)
    assert "sbatch is not in PATH" in done.stderr
    assert "login node" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(("said", "found"), [(None, "detach"), ("stop", "stop"), ("detach", "detach")])
def test_the_command_line_says_what_becomes_of_jobs_without_it(said: str | None, found: str) -> None:
    site, _ = RunOptions("slurm-test", on_lost_flow=said).read()  # type: ignore[arg-type]
    assert site.on_lost_flow == found
