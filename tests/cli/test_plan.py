from pathlib import Path

from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptRecord, EndKind
from kdgat.cluster.usage import Asked, Usage, append_usage
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from tests.canbus.recording_files import random_messages, write_text
from tests.support.command_line import kdgat


def test_the_plan_lists_stages_needs_and_sizes_and_counts_windows(tmp_path: Path) -> None:
    write_dataset(tmp_path, "synthetic", "tiny")
    words = ("--data-root", tmp_path, "--seeds", 0, 1, "-O", "training.max_epochs=7")
    done = kdgat("plan", "can", *words, status=0)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "autoencoder-large-seed1" in lines["curriculum-large-seed1"]
    assert "up to 7" in lines["normal-large-seed0"]
    assert "training recordings" in lines["synthetic:"]


def test_the_plan_needs_no_recordings_and_its_status_says_that_training_does(tmp_path: Path) -> None:
    for words in ((), ("--dry-run",)):
        done = kdgat("plan", "can", "--data-root", tmp_path, "--dataset", "absent", *words, status=1)
        assert "evaluation-large-seed0" in done.stdout
        assert done.stderr.startswith("error: unknown dataset 'absent': ")


def test_what_training_would_refuse_ends_a_plan_with_status_1(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "synthetic", "tiny")
    words = ("plan", "can", "--data-root", tmp_path, "--seeds", 0)
    assert "lies in the folder of dataset" in kdgat(*words, "--dry-run", "--out", folder / "out", status=1).stderr
    for name in ("train_01__a", "test_01__b"):
        write_text(folder / f"{name}.log", random_messages(500, len(name)), "candump.log")
    said = kdgat(*words, status=1).stderr
    assert "train_01__a.log: has no labels, so attacks in it would be learned as benign" in said
    for name in ("train_01__a", "test_01__b"):
        (folder / f"{name}.attacks.csv").write_text("0.1,0.2\n")
    assert kdgat(*words, status=0).stderr == ""
    for path in folder.rglob("*train_*"):
        path.unlink()
    assert "'synthetic' has no training scenario" in kdgat(*words, status=1).stderr
    assert "no such file or folder" in kdgat("plan", "trees", "--data-root", tmp_path / "absent", status=1).stderr
    assert "is missing" in kdgat("plan", "lap", "--data", tmp_path, status=1).stderr


def test_the_plan_of_a_directory_that_is_no_run_is_a_user_mistake(tmp_path: Path) -> None:
    done = kdgat("plan", "can", "--out", tmp_path, status=1)
    assert "run.json" in done.stderr


def test_the_plan_for_a_site_says_what_each_job_asks_for() -> None:
    words = ("--preset", "full", "--seeds", "0", "--site", "osc-pitzer", "--walltime", "16:00:00")
    overrides = ("-O", "resources.normal.memory=128G", "-O", "resources.prepare.cores=99")
    done = kdgat("plan", "can", *words, *overrides, status=1)
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:] if line}
    assert lines["normal-large-seed0"][-6:] == ["16:00:00", "128G", "8", "1", "v100", "prepare"]
    assert lines["prepare"][-4:] == ["16:00:00", "64G", "48", "recordings"]
    assert "cores 48 instead of 99, as osc-pitzer grants no more: prepare" in done.stdout


def test_the_plan_for_a_site_refuses_a_precision_that_its_gpus_have_no_units_for(tmp_path: Path) -> None:
    words = ("plan", "can", "--data-root", tmp_path, "--dataset", "absent", "-O", "training.precision=bf16-mixed")
    done = kdgat(*words, "--site", "osc-pitzer", "-O", "resources.normal.gpus=1", status=1)
    assert done.stderr.startswith("error: site osc-pitzer gives v100 (7.0), and training.precision=bf16-mixed needs ")
    for more in (("--site", "osc-pitzer", "--gpus", 0), ()):  # these are planned, and lack recordings
        assert "prepare" in kdgat(*words, *more, status=1).stdout


def test_the_plan_for_a_site_says_which_jobs_ask_for_what_earlier_ones_took(tmp_path: Path) -> None:
    used = Usage(
        time=0.0, run="a/evaluation", family="can", stage="evaluation", device="Tesla V100", units="stages", done=1,
        unit_s=600.0, rss_mib=90_000, cores=8,
    )  # fmt: skip
    append_usage(tmp_path / "runs" / "history" / "a.jsonl", used)
    words = ("--preset", "full", "--seeds", "0", "--site", "osc-pitzer")
    done = kdgat("plan", "can", *words, folder=tmp_path, status=1)
    said = next(line for line in done.stdout.splitlines() if line.startswith("asks for memory"))
    assert said.startswith("asks for memory 106G instead of 64G: ")
    assert said.endswith("largest of 1 run (enough for 50% of such runs): evaluation-large-seed0")
    dry = kdgat("plan", "can", *words, "--dry-run", folder=tmp_path, status=1).stdout
    assert "--mem=108544M" in dry
    taken = [line for line in dry.splitlines() if "; time: " in line]
    assert [line.split()[1] for line in taken] == ["evaluation-large-seed0:"]
    assert "# Time unknown: 8 stages" in dry
    assert "# Sum of known times: 17 min 38 s in 1 job." in dry
    assert "(enough for 50% of such runs), measured in no job of osc-pitzer: evaluation-large-seed0" in dry
    asked = Asked(walltime_s=3600, memory_mib=64_000, cores=8)
    append_usage(tmp_path / "runs" / "history" / "b.jsonl", used.model_copy(update={"asked": asked, "time": 1.0}))
    assert "measured in no job" not in kdgat("plan", "can", *words, folder=tmp_path, status=1).stdout


def test_the_plan_for_a_site_says_whom_jobs_are_charged_to_where_they_wait_and_how_long_they_last(
    tmp_path: Path,
) -> None:
    site = "name: own\nscheduler: slurm\npartition: short\ngpu_partition: cards\n"
    (tmp_path / "own.yaml").write_text(site)
    words = ("plan", "can", "--site", tmp_path / "own.yaml", "--walltime", "02:00:00")
    for more in ((), ("--dry-run",)):
        said = kdgat(*words, "--account", "PAS1", *more, status=1).stdout
        assert "Jobs of own: account PAS1, partition short, walltime 02:00:00." in said
    assert "account not named (--account NAME)" in kdgat(*words, status=1).stdout


def test_a_dry_run_says_how_long_stages_take_by_rules_and_forecasts_or_how_to_find_out(tmp_path: Path) -> None:
    trees = kdgat("plan", "trees", "--seeds", 0, "--dry-run", folder=tmp_path, status=0).stdout
    assert "# pretrain-seed0: needs prepare; time: up to " in trees
    assert "# Time by steps measured on a core: pretrain-seed0" in trees
    lap = kdgat("plan", "lap", "--dry-run", folder=tmp_path, status=0).stdout
    assert lap.count("; time: ") == 7
    assert "# Sum of known times: " in lap
    can = kdgat("plan", "can", "--data-root", tmp_path, "--dry-run", folder=tmp_path, status=1).stdout
    assert can.count("-m kdgat.stage") == can.count(": needs ")
    assert "not known yet: `kdgat estimate can --calibrate` tries one" in can


def test_what_stages_of_a_run_took_stands_beside_the_time_of_those_that_are_left(tmp_path: Path) -> None:
    names = ("prepare", "pretrain-seed0", "finetune-seed0", "scratch-seed0", "gin-seed0", "evaluation-seed0")
    output = OutputDirectory(tmp_path / "runs" / "a")
    stages = [StageRecord(name=name, stage=name, scale="", seed=0, directory=f"stages/{name}") for name in names]
    for place, one in enumerate(stages):
        used = Usage(
            time=0.0, run=f"b/{one.name}", family="trees", stage=one.name.partition("-")[0], device="cpu",
            units="stages", done=1, unit_s=60.0 * place,
        )  # fmt: skip
        append_usage(tmp_path / "runs" / "history" / "b.jsonl", used)
        directory = output.stage_directory(one)
        directory.path.mkdir(parents=True)
        record = AttemptRecord(number=1, started=100.0, ended=190.0, end=EndKind.FINISHED)
        directory.attempts_path.write_text(record.model_dump_json() + "\n")
        one.state = StageState.PLANNED if place >= 4 else StageState.FINISHED
    words = ("plan", "trees", "--seeds", 0, "--out", output.path)
    output.write_index(RunIndex(family="trees", config={}, stages=stages))
    printed = kdgat(*words, status=0).stdout
    assert printed.count("took 1 min 30 s") == 4
    below = printed.partition("Time by")[2].splitlines()
    assert below == [
        " 1 run on cpu (enough for 50% of such runs): gin-seed0, evaluation-seed0",
        "Sum of times left: 16 min 18 s.",
    ]
    for one in stages:
        one.state = StageState.CACHED
    output.write_index(RunIndex(family="trees", config={}, stages=stages))
    printed = kdgat(*words, status=0).stdout
    assert printed.count("took 1 min 30 s") == 6
    assert printed.endswith("Nothing is left.\n")
    assert "Time by" not in printed


def test_times_are_summed_up_and_what_stages_side_by_side_take_at_least_is_said(tmp_path: Path) -> None:
    words = ("plan", "can", "--dataset", "set_02", "--preset", "full", "--seeds", 0)
    assert kdgat(*words, folder=tmp_path, status=1).stdout.splitlines()[-3:] == [
        "Time by size rule for complex data: 5 stages",
        "Time unknown: 4 stages",
        "Sum of known times: 2 d 14 h, at least 1 d 14 h with stages side by side.",
    ]


def test_the_plan_as_a_diagram_is_a_flowchart_of_its_stages(tmp_path: Path) -> None:
    done = kdgat("plan", "can", "--data-root", tmp_path, "--diagram", status=0)
    assert done.stdout.startswith("flowchart TD\n")
    assert done.stdout.count("[") == len({line.split("[")[0] for line in done.stdout.splitlines() if "[" in line})
    assert "autoencoder" in done.stdout
