import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.cluster import ResourceRequest, Resources, Site
from kdgat.cluster.request import BUILT_IN, check_command_line, held_to_limits, stage_resources
from kdgat.cluster.site import Limits

NOTHING = ResourceRequest()
UNLIMITED = Site(name="free", scheduler="slurm")


def test_where_nobody_says_anything_a_small_job_is_asked_for() -> None:
    assert stage_resources("normal", {}, UNLIMITED, NOTHING) == Resources(walltime_s=3600, memory_mib=4096)


def test_each_value_comes_from_the_nearest_that_says_it() -> None:
    site = Site(
        name="a", scheduler="slurm", gpu_type="v100", defaults=ResourceRequest(walltime=1, memory=1, cores=1, gpus=1)
    )
    requests = {
        "default": ResourceRequest(walltime=2, memory=2, cores=2),
        "normal": ResourceRequest(walltime=3, memory=3),
    }
    found = stage_resources("normal", requests, site, ResourceRequest(walltime=4))
    assert found == Resources(walltime_s=240, memory_mib=3, cores=2, gpus=1, gpu_type="v100")


def test_two_stages_of_one_run_ask_for_different_things() -> None:
    requests = {"default": ResourceRequest(gpus=1), "prepare": ResourceRequest(gpus=0, cores=16)}
    assert stage_resources("prepare", requests, UNLIMITED, NOTHING).gpus == 0
    assert stage_resources("normal", requests, UNLIMITED, NOTHING).gpus == 1


def test_no_gpus_on_the_command_line_beats_a_gpu_in_the_configuration() -> None:
    requests = {"default": ResourceRequest(gpus=1, gpu_type="a100")}
    found = stage_resources("normal", requests, UNLIMITED, ResourceRequest(gpus=0))
    assert (found.gpus, found.gpu_type) == (0, None)


def test_the_type_of_gpu_that_a_request_names_beats_that_of_the_site() -> None:
    site = Site(name="a", scheduler="slurm", gpu_type="v100")
    asked = ResourceRequest(gpus=1, gpu_type="a100")
    assert stage_resources("normal", {"normal": asked}, site, NOTHING).gpu_type == "a100"
    assert stage_resources("normal", {}, site, NOTHING).gpu_type is None


def test_a_configuration_is_held_to_the_limits_and_that_can_be_said() -> None:
    limits = Limits(walltime="02:00:00", memory="8G", cores=4, gpus=0)
    site = Site(name="small", scheduler="slurm", limits=limits)
    requests = {"default": ResourceRequest(walltime="16:00:00", memory="128G", cores=4, gpus=1)}
    assert stage_resources("normal", requests, site, NOTHING) == Resources(
        walltime_s=7200, memory_mib=8192, cores=4, gpus=0
    )
    assert held_to_limits("normal", requests, site, NOTHING) == {
        "walltime": ("16:00:00", "02:00:00"),
        "memory": ("128G", "8G"),
        "gpus": (1, 0),
    }


def test_a_site_without_gpus_gets_none() -> None:
    site = Site(name="cpu", scheduler="slurm", gpu_type="v100", limits=Limits(gpus=0))
    found = stage_resources("normal", {"default": ResourceRequest(gpus=1)}, site, NOTHING)
    assert (found.gpus, found.gpu_type) == (0, None)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (ResourceRequest(walltime="16:00:00"), ["--walltime 16:00:00", "02:00:00"]),
        (ResourceRequest(memory="128G"), ["--memory 128G", "8G"]),
        (ResourceRequest(cores=5), ["--cores 5", "4 at most"]),
        (ResourceRequest(gpus=1), ["--gpus 1", "no GPUs"]),
    ],
)
def test_a_command_line_beyond_a_limit_is_refused_with_both_numbers(asked: ResourceRequest, words: list[str]) -> None:
    limits = Limits(walltime="02:00:00", memory="8G", cores=4, gpus=0)
    site = Site(name="small", scheduler="slurm", limits=limits)
    for refuse in (lambda: check_command_line(asked, site), lambda: stage_resources("normal", {}, site, asked)):
        with pytest.raises(UserError) as error:
            refuse()
        for word in ("small", *words):
            assert word in str(error.value)


@given(
    asked=st.builds(
        ResourceRequest,
        walltime=st.none() | st.integers(1, 9999),
        memory=st.none() | st.integers(1, 99_999),
        cores=st.none() | st.integers(1, 99),
        gpus=st.none() | st.integers(0, 1),
    ),
    limits=st.builds(
        Limits,
        walltime=st.none() | st.integers(1, 9999),
        memory=st.none() | st.integers(1, 99_999),
        cores=st.none() | st.integers(1, 99),
        gpus=st.none() | st.integers(0, 9),
    ),
)
def test_no_job_ever_asks_for_more_than_a_site_grants(asked: ResourceRequest, limits: Limits) -> None:
    site = Site(name="any", scheduler="slurm", gpu_type="v100", limits=limits)
    found = stage_resources("normal", {"normal": asked}, site, NOTHING)
    for value, limit in (
        (found.walltime_s, limits.walltime_s),
        (found.memory_mib, limits.memory_mib),
        (found.cores, limits.cores),
        (found.gpus, limits.gpus),
    ):
        assert limit is None or value <= limit
    wanted = asked.over(BUILT_IN)
    held = held_to_limits("normal", {"normal": asked}, site, NOTHING)
    assert ("walltime" in held) == (found.walltime_s != wanted.walltime_s)
    assert ("gpus" in held) == (found.gpus != wanted.gpus)
    assert (found.gpu_type is not None) == (found.gpus > 0)
