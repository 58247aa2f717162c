import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.base import write_json_atomically
from kdgat.lap.config import LapConfig
from kdgat.lap.inputs import lap_run
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.store import write_store
from kdgat.lap.plan import plan_lap
from kdgat.lap.training.schedule import Rates
from kdgat.run import OutputDirectory
from kdgat.run.directory import RunIndex
from kdgat.run.plan import make_spec
from tests.lap.runs import OVERRIDES, make_config, small_config
from tests.support.command_line import Answer
from tests.support.small_runs import as_options

Kdgat = Callable[..., Answer]


def lines(printed: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in printed.splitlines() if line}


def test_the_plan_lists_stages_instances_batches_memory_and_time(kdgat: Kdgat) -> None:
    status, printed, _ = kdgat("plan", "lap", "--preset", "full", "--seeds", "0", "1")
    assert status == 0
    found = lines(printed)
    assert found["prepare-4096"][1] == "46"
    assert found["mid_2048-seed1"][:5] == ["mid_2048-seed1", "144", "2", "of", "n=2048"]
    assert "small_512_only_and_small_1024_only-seed0" in found["mid_1536-seed0"]
    assert "Time by measured rates of one CPU core: 18 stages\n" in printed
    assert "Sum of known times: " in printed
    assert "job" not in printed  # here stages are processes that no walltime cuts


def test_chosen_stages_are_planned_with_what_they_need_and_a_wrong_name_is_a_user_mistake(kdgat: Kdgat) -> None:
    status, printed, _ = kdgat("plan", "lap", "--preset", "full", "--stages", "small_512_only", "small_1024_only")
    assert status == 0
    assert "mid_1536" not in printed
    _, printed, _ = kdgat("plan", "lap", "--preset", "full", "--stages", "small_512_only", "mid_1536")
    assert "small_1024_only-seed0" in printed
    status, _, error = kdgat("plan", "lap", "--stages", "mid_2084")
    assert status == 1
    assert "did you mean 'mid_2048'?" in error


def test_two_stages_share_a_job_if_asked_and_what_would_fit_is_said(kdgat: Kdgat) -> None:
    status, printed, _ = kdgat("plan", "lap", "--two-in-one", "--site", "osc-pitzer")
    assert status == 0
    assert "small_512_only_and_small_1024_only-seed0" in lines(printed)
    _, printed, _ = kdgat("plan", "lap", "--site", "osc-pitzer")
    assert "-O 'jobs=[[small_512_only, small_1024_only, mid_2048]]'" in printed


def test_hours_come_from_measured_rates_where_there_are_some(kdgat: Kdgat, tmp_path: Path) -> None:
    rates = Rates(device="a slow one", is_measured=True, step_s=100.0, byte_s=1e-12)
    write_json_atomically(tmp_path / "rates.json", rates.model_dump(mode="json"))
    status, printed, _ = kdgat(
        "plan", "lap", "--preset", "full", "--site", "osc-pitzer", "--measured", str(tmp_path / "rates.json")
    )
    assert status == 0
    assert "Time by measured rates of a slow one" in printed
    # 60 epochs of 150 batches and 40 of 225, a hundred seconds each
    assert "up to 20 d 20 h" in printed
    assert " jobs, at least " in printed


def test_the_plan_for_a_site_says_what_each_job_asks_for(kdgat: Kdgat) -> None:
    words = ("--preset", "full", "--site", "osc-pitzer", "--walltime", "04:00:00", "-O", "resources.default.gpus=1")
    status, printed, _ = kdgat("plan", "lap", *words, "-O", "resources.mid_3072.cores=99")
    assert status == 0
    found = lines(printed)
    assert " ".join(found["mid_1536-seed0"]).count(" 04:00:00 6G 2 1 v100 ") == 1
    assert "cores 48 instead of 99, as osc-pitzer grants no more: mid_3072" in printed


def test_a_dry_run_prints_what_would_run_here_and_starts_nothing(kdgat: Kdgat, tmp_path: Path) -> None:
    status, printed, _ = kdgat("plan", "lap", "--dry-run", "--out", str(tmp_path / "out"))
    assert status == 0
    commands = [line for line in printed.splitlines() if "-m kdgat.stage" in line]
    assert len(commands) == 7
    directory = lap_run_directory("prepare-512", tmp_path / "out")
    assert f"-m kdgat.stage {directory} " in commands[0]
    assert "/stages/mid_2048-2048-seed0-xxxxxxxx " in commands[5]
    assert list(tmp_path.iterdir()) == []


def lap_run_directory(name: str, out: Path) -> Path:
    run = lap_run(make_config("quick"))
    planned = next(planned for planned in run.plan if planned.name == name)
    return out / "stages" / make_spec("lap", planned, {}, {}).directory_name()


def test_a_dry_run_for_a_site_prints_the_scripts_of_its_jobs(kdgat: Kdgat, tmp_path: Path) -> None:
    words = ("--preset", "full", "--stages", "small_512_only", "--site", "osc-pitzer", "--out", str(tmp_path / "out"))
    status, printed, _ = kdgat("plan", "lap", *words, "-O", "resources.default.gpus=1", "--dry-run")
    assert status == 0
    scripts = printed.split("#!/usr/bin/env bash")[1:]
    assert len(scripts) == 3
    prepare, train, evaluation = scripts
    assert "#SBATCH -t 08:00:00" in train
    assert "#SBATCH --gres=gpu:v100:1" in train
    assert "--gres" not in prepare + evaluation
    assert "#SBATCH --dependency=singleton" in train
    assert list(tmp_path.iterdir()) == []


def test_the_plan_counts_what_files_hold(kdgat: Kdgat, tmp_path: Path) -> None:
    for file, seeds in (("train", range(5)), ("val", range(5, 7)), ("test", range(7, 8))):
        path = tmp_path / "small" / "full" / f"{file}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_store(path, (generate("uniform", 512, seed) for seed in seeds), "seeded")
    status, printed, error = kdgat("plan", "lap", "--data", str(tmp_path), "--stages", "small_512_only")
    assert status == 0, error
    assert lines(printed)["prepare-512"][1] == "8"
    assert lines(printed)["small_512_only-seed0"][1] == "5"
    status, _, error = kdgat("plan", "lap", "--data", str(tmp_path))
    assert status == 1
    assert "small/full/train.h5: has no instance of size 1024 for train (it has: 5 of size 512)" in error


def test_what_has_finished_is_said(kdgat: Kdgat, tmp_path: Path) -> None:
    planned = plan_lap(small_config())[0]
    record = {"name": planned.name, "stage": planned.stage, "scale": planned.scale, "seed": 0, "state": "finished"}
    (tmp_path / "run.json").write_text(
        json.dumps({"family": "lap", "config": {}, "stages": [record]}), encoding="utf-8"
    )
    status, printed, error = kdgat("plan", "lap", "--out", str(tmp_path), "-O", "progression.small_512_only.size=16")
    assert status == 0, error
    assert "finished" in lines(printed)["prepare-16"]
    assert "not planned there" in printed


def test_an_analysis_says_what_stages_are_made_of_and_json_needs_a_measurement(kdgat: Kdgat, tmp_path: Path) -> None:
    status, printed, _ = kdgat("lap", "analyze", "--preset", "full")
    assert status == 0
    assert lines(printed)["large_4096"][:7] == ["large_4096", "4096", "30", "8", "8", "196,608", "1.2%"]
    status, _, error = kdgat("lap", "analyze", "--json", str(tmp_path / "rates.json"))
    assert status == 1
    assert "--memory" in error


def test_a_run_is_analysed_as_it_was_configured(kdgat: Kdgat, tmp_path: Path) -> None:
    config = LapConfig.from_preset("full", {}, ["stages=[small_512_only]", "progression.small_512_only.size=64"])
    output = OutputDirectory(tmp_path)
    output.write_index(RunIndex(family="lap", config=config.model_dump(mode="json"), stages=[]))
    _, printed, _ = kdgat("lap", "analyze", "--run", str(tmp_path))
    assert lines(printed)["small_512_only"][1] == "64"
    assert "large_4096" not in printed
    _, _, error = kdgat("lap", "analyze", "--run", str(tmp_path), "--stages", "small_512_only")
    assert "--stages: --run" in error
    output.write_index(RunIndex(family="can", config={}, stages=[]))
    assert "is a run of family 'can'" in kdgat("lap", "analyze", "--run", str(tmp_path)).stderr


@pytest.mark.processes
def test_an_analysis_measures_steps_and_the_plan_goes_by_them(kdgat: Kdgat, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    words = ("--stages", "small_512_only", "--steps", "2", *as_options(*OVERRIDES), "--json", str(path))
    status, printed, error = kdgat("lap", "analyze", "--preset", "quick", "--memory", *words)
    assert status == 0, error
    assert "ratio" in printed
    status, printed, error = kdgat("plan", "lap", "--measured", str(path))
    assert status == 0, error
    assert "Time by measured rates of" in printed
