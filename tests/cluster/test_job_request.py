"""What a job asks for after attempts like it: more where they took more, less only where that is wanted."""

from dataclasses import replace

import pytest

from kdgat.cluster import ResourceRequest, Resources, Site, format_walltime
from kdgat.cluster.forecast import Estimate, Job
from kdgat.cluster.request import request_of_job
from kdgat.cluster.site import Limits
from kdgat.cluster.usage import Asked, Usage, append_usage, config_digest, read_usages, usage_path
from kdgat.stage import RunDirectory, StageInput, StageSpec

ASKED = Resources(walltime_s=3600, memory_mib=16_384, cores=1)
JOB = Job("can", "normal", "same", {"bytes": 1000}, "new/normal")
NOTHING = ResourceRequest()


def usage(run, **given):
    fields = {
        "time": 0.0, "family": "can", "stage": "normal", "device": "cpu", "config": "same", "size": {"bytes": 1000},
        "done": 10_000, "unit_s": 1.0, "startup_s": 10.0, "rss_mib": 3000,
        "asked": Asked(walltime_s=3600, memory_mib=16_384, cores=1),
    }  # fmt: skip
    return Usage(run=run, **{**fields, **given})


def asks(usages, *, job=JOB, asked=ASKED, command_line=NOTHING, limits=None, is_adaptive=True, assumed=None):
    site = Site(name="pitzer", scheduler="slurm", limits=limits or Limits())
    walltime = format_walltime(asked.walltime_s)
    requests = {"normal": ResourceRequest(walltime=walltime, memory=asked.memory_mib, adaptive=is_adaptive)}
    made = request_of_job(job, usages, requests, site, command_line, assumed=assumed)
    return made.resources, list(made.changes)


RUNS = [usage(str(number)) for number in range(4)]


def test_nothing_known_changes_nothing() -> None:
    others = [usage("a", stage="curriculum"), usage("b", family="lap"), usage("c", cores=8), usage("d", device="v100")]
    assert asks([]) == asks(others) == (ASKED, [])


def test_a_walltime_that_would_not_do_is_raised_and_the_sentence_says_why() -> None:
    resources, (sentence, _) = asks(RUNS)
    assert resources.walltime_s == 11_700  # 1.15 (10 + 10,000 + 20) s, in steps of five minutes
    assert sentence == (
        "asks for walltime 03:15:00 instead of 01:00:00: 4 runs on cpu: 1 s per step, 10,000 steps "
        "(enough for 80% of such runs)"
    )


def test_memory_that_is_not_needed_is_given_back_where_that_is_wanted() -> None:
    assert asks(RUNS)[0].memory_mib == 4096  # 1.2 of 3,000 MiB and 256, in whole GiB
    resources, sentences = asks(RUNS, is_adaptive=False)
    assert resources.memory_mib == ASKED.memory_mib
    assert [sentence.split()[2] for sentence in sentences] == ["walltime"]


def test_an_amount_that_suffices_is_not_raised_to_a_round_one() -> None:
    small = Resources(walltime_s=90, memory_mib=900)
    runs = [usage(str(number), done=10, rss_mib=400) for number in range(4)]
    for is_adaptive in (True, False):
        assert asks(runs, asked=small, is_adaptive=is_adaptive) == (small, [])


def test_what_the_command_line_asks_for_stays() -> None:
    given = ResourceRequest(walltime="01:00:00", memory="16G")
    assert asks(RUNS, command_line=given) == (ASKED, [])


def test_the_limits_of_the_site_hold() -> None:
    assert asks(RUNS, limits=Limits(walltime="02:00:00"))[0].walltime_s == 7200


def test_more_to_read_takes_longer_and_more_memory() -> None:
    twice = Job("can", "normal", "same", {"bytes": 2000}, "new/normal")
    assert asks(RUNS, job=twice)[0] == Resources(walltime_s=23_100, memory_mib=8192)
    whole = [one.model_copy(update={"units": "stages", "done": 1, "unit_s": 600.0}) for one in RUNS]
    assert asks(whole)[0].walltime_s == 900
    assert asks(whole, job=twice)[0].walltime_s == 1500


def test_attempts_with_the_same_configuration_count_before_others() -> None:
    longer = [usage(f"other {number}", config="other", done=90_000) for number in range(4)]
    assert asks(RUNS + longer)[0] == asks(RUNS)[0]
    assert asks(longer)[0].walltime_s > 90_000


def test_more_epochs_than_attempts_had_are_more_steps() -> None:
    known = [one.model_copy(update={"epochs": 10}) for one in RUNS]
    twice = replace(JOB, config="another", epochs=20)
    assert asks(known, job=twice)[0].walltime_s == 23_100
    assert asks(known, job=replace(twice, epochs=0))[0] == asks(known)[0]


def test_a_run_that_goes_on_asks_for_what_is_left_of_it() -> None:
    own = usage(JOB.run, done=9000, left=1000, unit_s=2.0, end="SlurmTimeout")
    resources, (sentence, _) = asks([*RUNS, own])
    assert resources.walltime_s == 2700  # 1.15 (10 + 1,000 x 2.2 + 20) s
    assert "this run: 2.2 s per step, 1,000 steps left" in sentence


def test_a_stage_that_ran_out_of_memory_asks_for_more() -> None:
    died = usage("a", out_of_memory=True, rss_mib=16_000)
    assert asks([died], is_adaptive=False)[0].memory_mib >= 1.5 * ASKED.memory_mib


@pytest.mark.parametrize(("adaptive", "memory_mib"), [(True, 4096), (None, 16_384), (False, 16_384)])
def test_history_is_read_for_the_stage_of_a_directory(tmp_path, adaptive, memory_mib) -> None:
    (tmp_path / "store").write_bytes(b"0" * 1000)
    spec = StageSpec(family="can", stage="normal", seed=0, inputs={"train": StageInput.of_file(tmp_path / "store")})
    directory = RunDirectory(tmp_path / "runs" / "new" / "stages" / "normal").create(spec)
    site = Site(name="pitzer", scheduler="slurm", defaults={"memory": "16G", "adaptive": adaptive})
    for number in range(4):
        path = usage_path(site, tmp_path / "runs" / str(number))
        append_usage(path, usage(f"{number}/normal", config=config_digest(spec.config)))
    history = usage_path(site, tmp_path / "runs" / "new")
    made = request_of_job(Job.in_directory(directory, history), read_usages(history.parent), {}, site, NOTHING)
    assert (made.resources.walltime_s, made.resources.memory_mib) == (11_700, memory_mib)
    assert made.num_jobs == 1
    assert all("4 runs" in sentence for sentence in made.changes)


def test_what_a_rule_says_raises_and_never_lowers_and_gives_way_to_attempts() -> None:
    rule = {"walltime": Estimate(43_200, None, "size rule"), "memory": Estimate(8192, None, "size rule")}
    resources, sentences = asks([], assumed=rule)
    assert (resources.walltime_s, resources.memory_mib) == (43_200, ASKED.memory_mib)
    assert sentences == ["asks for walltime 12:00:00 instead of 01:00:00: size rule"]
    assert asks(RUNS, assumed=rule) == asks(RUNS)


def test_a_stage_that_takes_longer_than_the_site_grants_takes_several_jobs(tmp_path) -> None:
    site = Site(name="pitzer", scheduler="slurm", limits={"walltime": "01:00:00"})
    made = request_of_job(JOB, RUNS, {}, site, NOTHING)
    assert made.resources.walltime_s == 3600
    assert made.num_jobs == 4
