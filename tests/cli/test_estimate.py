"""What jobs take, before any is submitted, as people and programs read it."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from kdgat.can.config import CanConfig
from kdgat.can.inputs import can_run
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster.usage import Asked, Usage, append_usage
from kdgat.run import run_locally
from tests.support.command_line import kdgat


def estimate(*words: object, folder: Path | None = None) -> dict:
    return json.loads(kdgat("estimate", *words, "--json", folder=folder, status=0).stdout)


def test_a_large_dataset_that_is_not_there_gets_what_its_size_asks_for(tmp_path: Path) -> None:
    found = estimate("can", "--dataset", "set_02", "--preset", "full", "--stages", "autoencoder", folder=tmp_path)
    _, stage = found["stages"]
    assert (found["graphs"], found["complexity"]) == (203_496, "complex")
    assert (stage["walltime"], stage["memory"], stage["jobs"]) == ("12:00:00", "96G", 1)
    assert stage["sources"]["walltime"] == "size rule for complex data: 203,496 windows"
    assert "kdgat train can --dataset set_02 --preset full --stages autoencoder --data-root data" in found["command"]


def test_what_somebody_asks_for_in_so_many_words_stays(tmp_path: Path) -> None:
    words = ("can", "--dataset", "set_02", "--stages", "normal", "-O", "resources.normal.walltime=04:00:00")
    found = estimate(*words, "--site", "osc-pitzer", "--memory", "80G", folder=tmp_path)
    _, stage = found["stages"]
    assert (stage["walltime"], stage["memory"]) == ("04:00:00", "80G")
    assert stage["sources"]["walltime"] == "configuration"
    assert stage["sources"]["memory"] == "command line"
    assert "--memory 80G" in found["command"]


def test_all_datasets_are_compared_in_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path, "mine", "tiny")
    words = (
        "can",
        "--data-root",
        tmp_path,
        "--dataset",
        "mine",
        "--compare",
        "--preset",
        "full",
        "--stages",
        "curriculum",
    )
    done = kdgat("estimate", *words, status=0)
    rows = {line.split()[0]: line.split()[2:] for line in done.stdout.splitlines() if "curriculum-" in line}
    assert rows["set_02"] == ["203,496", "14:24:00", "106G", "1"]
    assert rows["hcrl_sa"] == ["9,364", "09:36:00", "70G", "1"]
    assert rows["mine"] == ["252", "08:00:00", "64G", "unknown"]
    assert f"Graphs counted in 8 recordings of {tmp_path}: mine" in done.stdout
    monkeypatch.setattr("kdgat.cli.tables.output_console", lambda: Console(highlight=False, width=80))
    assert kdgat("estimate", *words, status=0).stdout.count("dataset  stage") == 1


def test_all_stages_and_where_their_amounts_come_from_fit_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.cli.tables.output_console", lambda: Console(highlight=False, width=80))
    printed = kdgat("estimate", "can", "--dataset", "set_02", "--preset", "full", folder=tmp_path, status=0).stdout
    table, _, below = printed.partition("Walltime, time and memory by ")
    assert max(len(line) for line in table.splitlines()[1:]) <= 80  # the first is a sentence
    assert "Of 3 seeds the first is shown:\n" in table
    assert "distill_autoencoder-small-seed0  12:00:00   up to 12 h 0 min     96G        1\n" in table
    assert "size rule for complex data: 203,496 windows: autoencoder-large-seed0, " in " ".join(below.split())
    assert below.endswith("--data-root data --out runs/set_02\n")  # a command is one line


def test_attempts_that_were_noted_come_before_rules_and_plan_and_estimate_agree(tmp_path: Path) -> None:
    for number in range(4):
        used = Usage(
            time=number, run=f"{number}/autoencoder", family="can", stage="autoencoder", device="Tesla V100", cores=8,
            done=100_000, unit_s=0.9, startup_s=30.0, rss_mib=11_000, gpu_mib=5000,
            asked=Asked(walltime_s=28_800, memory_mib=65_536, cores=8, gpus=1),
        )  # fmt: skip
        append_usage(tmp_path / "runs" / "history" / f"{number}.jsonl", used)
    words = ("can", "--dataset", "set_02", "--site", "osc-pitzer", "--preset", "full")
    found = estimate(*words, "--stages", "autoencoder", folder=tmp_path)
    _, stage = found["stages"]
    assert stage["walltime"] == "1-04:50:00"  # 1.15 (30 + 90,000 + 20) s
    assert "4 runs on Tesla V100" in stage["sources"]["walltime"]
    assert stage["memory"] == "64G"  # less would do, which nobody has asked for
    assert stage["expected"]["memory_mib"]["value"] < 14_000
    assert 5 < stage["gpu_memory_gib"] < 7
    planned = kdgat("plan", *words, folder=tmp_path, status=1).stdout
    estimated = kdgat("estimate", *words, folder=tmp_path, status=0).stdout
    times = [line for line in planned.splitlines() if line.startswith(("Time ", "Sum "))]
    assert "Time by 4 runs on Tesla V100 (enough for 80% of such runs): 3 stages" not in times  # one for each seed
    assert times == [line for line in estimated.splitlines() if line.startswith(("Time ", "Sum "))]
    assert "asks for walltime 1-04:50:00 instead of 08:00:00" in planned
    assert "asks for walltime 14:24:00 instead of 08:00:00: size rule for complex data" in planned


@pytest.mark.processes
def test_a_calibration_trains_for_some_seconds_and_leaves_the_run_alone(tmp_path: Path) -> None:
    write_dataset(tmp_path, "synthetic", "tiny")
    data = {"dataset": "synthetic", "data_root": str(tmp_path)}
    config = CanConfig.from_preset("quick", {"data": data}, ["resources.autoencoder.walltime=00:01:00"])
    run_locally(can_run(config), tmp_path / "run", only=["prepare"])
    before = sorted(tmp_path.joinpath("run").rglob("*"))
    words = ("can", "--data-root", tmp_path, "--preset", "quick", "--out", tmp_path / "run", "--seconds", 1)
    found = estimate(*words, "--calibrate", "autoencoder")
    expected = found["stages"][0]["expected"]["walltime_s"]
    assert expected["source"].startswith("calibration of 1 s on cpu: 1 run on cpu:")
    assert expected["value"] > 0
    assert sorted(tmp_path.joinpath("run").rglob("*")) == before
    refused = kdgat("estimate", *words, "--calibrate", "curriculum", status=1)
    assert "reads what autoencoder-large-seed0 writes" in refused.stderr


def test_mistakes_name_the_option_and_the_fix(tmp_path: Path) -> None:
    refused = kdgat("estimate", "can", "--stages", "normall", status=1, folder=tmp_path)
    assert "stages: unknown key 'normall'" in refused.stderr
    words = ("can", "--out", tmp_path / "run", "--calibrate")
    refused = kdgat("estimate", *words, "normall", status=1, folder=tmp_path)
    assert (
        "--calibrate normall: the run has no such stage, choose one of prepare, autoencoder, normal" in refused.stderr
    )
    refused = kdgat("estimate", "can", "--calibrate", "normal", status=1, folder=tmp_path)
    assert "give its --out DIR, and no --compare" in refused.stderr


def test_other_families_say_what_they_know_of_themselves(tmp_path: Path) -> None:
    lap = estimate("lap", "--preset", "quick", folder=tmp_path)
    assert all(stage["jobs"] == 1 for stage in lap["stages"])
    assert {stage["sources"]["memory"] for stage in lap["stages"]} == {"predicted from the configuration"}
    compared = kdgat("estimate", "lap", "--preset", "full", "--compare", status=0, folder=tmp_path).stdout
    assert "kdgat train lap --preset full --out runs/lap" in compared
    trees = estimate("trees", "--preset", "full", "--stages", "pretrain", folder=tmp_path)
    assert trees["stages"][1]["gpu_memory_gib"] > 0.1
