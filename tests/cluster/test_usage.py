import json

import pytest

from kdgat.base import UserError
from kdgat.cluster import AttemptRecord, Resources, Site
from kdgat.cluster.usage import (
    Asked,
    Usage,
    append_usage,
    efficiencies,
    find_history,
    read_usages,
    usage_of,
    usage_path,
)
from kdgat.stage import FailureKind, StageSpec, Work
from kdgat.stage.work import FitWork

SPEC = StageSpec(family="can", stage="normal", seed=0, config={"training": {"max_epochs": 3}})
ASKED = Resources(walltime_s=3600, memory_mib=8192, cores=4)
RECORD = AttemptRecord(
    number=1, resources=ASKED, submitted=1000.0, started=1090.0, ended=1990.0, end="Completed", peak_memory_mib=2048
)


def test_what_a_job_took_stands_beside_what_it_asked_for() -> None:
    work = Work(
        startup_s=10.0, fits={"a": FitWork(done=100, seconds=80.0), "b": FitWork(done=300, left=50, seconds=20.0)}
    )
    usage = usage_of(RECORD, work, SPEC, "runs-1/normal")
    assert (usage.units, usage.done, usage.left, usage.unit_s) == ("steps", 400, 50, 0.25)
    assert (usage.wall_s, usage.queue_s, usage.rss_mib, usage.cores) == (900.0, 90.0, 2048, 4)
    assert usage.describe() == "00:15:00 of 01:00:00 (25%), 2G of 8G (25%); waited 00:01:30 in the queue"


def test_the_size_of_batches_that_was_found_outlives_the_run(tmp_path) -> None:
    path = tmp_path / "history" / "a.jsonl"
    append_usage(path, usage_of(RECORD, Work(batch_size={"mlp": 563}), SPEC, "a"))
    append_usage(path, usage_of(RECORD, Work(), SPEC, "a"))
    assert [usage.batch_size for usage in read_usages(path.parent)] == [{"mlp": 563}, {}]


def test_a_stage_without_steps_is_one_unit_of_work_if_it_came_to_its_end() -> None:
    whole = usage_of(RECORD, Work(startup_s=10.0), SPEC, "a")
    assert (whole.units, whole.done, whole.unit_s) == ("stages", 1, 890.0)
    cut = usage_of(RECORD.model_copy(update={"end": "SlurmTimeout"}), Work(startup_s=10.0), SPEC, "a")
    assert (cut.units, cut.done, cut.unit_s) == ("stages", 0, 0.0)


@pytest.mark.parametrize(
    "changes", [{"end": "HostOutOfMemory"}, {"end": "StageFailed", "failure": FailureKind.HOST_OOM}]
)
def test_memory_that_did_not_suffice_is_a_lower_bound(changes) -> None:
    assert usage_of(RECORD.model_copy(update=changes), Work(), SPEC, "a").out_of_memory


def test_an_attempt_on_this_machine_asks_for_nothing_and_waits_for_nobody() -> None:
    record = RECORD.model_copy(update={"resources": None, "submitted": 0.0})
    usage = usage_of(record, Work(threads=2), SPEC, "a")
    assert (usage.asked, usage.queue_s, usage.cores) == (None, 0.0, 2)


def test_configurations_are_told_apart() -> None:
    other = SPEC.model_copy(update={"config": {"training": {"max_epochs": 4}}})
    assert usage_of(RECORD, Work(), SPEC, "a").config != usage_of(RECORD, Work(), other, "a").config


def test_a_history_lies_beside_its_runs_or_where_the_site_says(tmp_path) -> None:
    local = Site(name="local")
    one, two = usage_path(local, tmp_path / "runs" / "a"), usage_path(local, tmp_path / "runs" / "b")
    assert one.parent == tmp_path / "runs" / "history"
    assert one != two
    elsewhere = Site(name="pitzer", history=str(tmp_path / "kept"))
    assert usage_path(elsewhere, tmp_path / "runs" / "a") == tmp_path / "kept" / one.name
    append_usage(one, usage_of(RECORD, Work(), SPEC, "a"))
    assert find_history(tmp_path / "runs", None) == find_history(one.parent, None) == one.parent
    with pytest.raises(UserError, match="give the folder in which output directories"):
        find_history(None, elsewhere)


def test_a_line_that_was_cut_short_hides_no_other(tmp_path) -> None:
    path = tmp_path / "history" / "a.jsonl"
    first, second = (usage_of(RECORD.model_copy(update={"ended": ended}), Work(), SPEC, "a") for ended in (2.0, 1.0))
    append_usage(path, first)
    with path.open("a") as file:
        file.write('{"v": 1, "time": 17')
    append_usage(path, second)
    path.with_name("b.jsonl").write_text(json.dumps({"v": 2, "time": 0.0}) + "\n")
    assert read_usages(path.parent) == [second, first]


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path) -> None:
    (tmp_path / "history").write_text("a file")
    assert not append_usage(tmp_path / "history" / "a.jsonl", usage_of(RECORD, Work(), SPEC, "a"))


def usage(run, wall_s, rss_mib, queue_s=0.0, stage="normal", **asked):
    return Usage(
        time=0.0, run=run, family="can", stage=stage, device="v100", wall_s=wall_s, rss_mib=rss_mib, queue_s=queue_s,
        asked=Asked(**asked) if asked else None,
    )  # fmt: skip


def test_what_was_used_stands_beside_what_was_asked_for() -> None:
    asked = {"walltime_s": 7200, "memory_mib": 8192, "cores": 1}
    attempts = [
        usage("a", 3600, 4096, 60.0, **asked),
        usage("a", 720, 2048, 600.0, **asked),
        usage("b", 1800, 2048, 120.0, **asked),
        usage("c", 100, 500, stage="curriculum"),
    ]
    normal, curriculum = efficiencies(attempts)
    assert [normal[key] for key in ("attempts", "runs", "queue_s")] == [3, 2, 120.0]
    assert [normal[key] for key in ("wall_s", "rss_mib")] == [1800, 4096]
    assert [normal[key] for key in ("walltime_share", "memory_share")] == [0.25, 0.25]
    assert normal["wasted_gib_hours"] == pytest.approx(4 * 1.0 + 6 * 0.2 + 6 * 0.5)
    assert [curriculum[key] for key in ("stage", "walltime_share", "wasted_gib_hours")] == ["curriculum", None, 0.0]


def test_how_busy_gpus_were_is_that_of_the_attempt_in_the_middle() -> None:
    known = [usage("a", 60, 100).model_copy(update={"gpu_busy": share}) for share in (0.2, 0.9, 0.4, None)]
    (found,) = efficiencies(known)
    assert found["gpu_busy"] == 0.4
