import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError, validate_config
from kdgat.base.configuration import read_yaml
from kdgat.cluster import ResourceRequest, Resources, format_memory, format_walltime
from kdgat.cluster.resources import parse_memory, parse_walltime

REQUESTS = st.builds(
    ResourceRequest,
    walltime=st.none() | st.integers(1, 10_000),
    memory=st.none() | st.integers(1, 1_000_000),
    cores=st.none() | st.integers(1, 64),
    gpus=st.none() | st.integers(0, 1),
    gpu_type=st.none() | st.sampled_from(["v100", "a100"]),
)


@given(st.integers(1, 366 * 86_400))
def test_a_walltime_survives_being_written_and_read(walltime_s: int) -> None:
    assert parse_walltime(format_walltime(walltime_s)) == walltime_s


@given(st.integers(1, 1024**3))
def test_an_amount_of_memory_survives_being_written_and_read(memory_mib: int) -> None:
    assert parse_memory(format_memory(memory_mib)) == memory_mib


@given(st.integers(1, 366 * 86_400))
def test_a_walltime_in_a_yaml_file_needs_no_quotes(walltime_s: int) -> None:
    text = format_walltime(walltime_s)
    assert read_yaml(f"walltime: {text}") == {"walltime": text}
    assert read_yaml(f"walltime: {text.lstrip('0')}") == {"walltime": text.lstrip("0")}


@given(REQUESTS)
def test_a_request_survives_being_written_down(request: ResourceRequest) -> None:
    assert ResourceRequest.model_validate_json(request.model_dump_json()) == request


@given(REQUESTS, REQUESTS, REQUESTS)
def test_requests_can_be_put_over_each_other_in_any_grouping(
    first: ResourceRequest, second: ResourceRequest, third: ResourceRequest
) -> None:
    assert first.over(second).over(third) == first.over(second.over(third))


@given(REQUESTS, REQUESTS)
def test_the_upper_request_wins_where_it_says_something(upper: ResourceRequest, lower: ResourceRequest) -> None:
    both = upper.over(lower).model_dump()
    assert both == {
        key: below if above is None else above
        for (key, above), below in zip(upper.model_dump().items(), lower.model_dump().values(), strict=True)
    }


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    for parse, key in ((parse_walltime, "walltime="), (parse_memory, "memory=")):
        try:
            value, refusal = parse(text), None
        except UserError as error:
            value, refusal = 0, str(error)
        assert value > 0 if refusal is None else refusal.startswith(key)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 5400),
        ("90", 5400),
        ("90:30", 5430),
        ("16:00:00", 57_600),
        ("100:00:00", 360_000),
        ("2-0", 172_800),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
    ],
)
def test_walltimes_mean_what_sbatch_takes_them_for(text: str | int, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(("text", "mib"), [(512, 512), ("512", 512), ("85G", 87_040), ("1t", 1_048_576), ("7m", 7)])
def test_amounts_of_memory_mean_what_sbatch_takes_them_for(text: str | int, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("12:99:00", ["99 minutes", "write 13:39:00"]),
        ("12:00:75", ["75 seconds", "write 12:01:15"]),
        ("10:60", ["60 seconds", "write 00:11:00"]),
        ("1-25:00:00", ["25 hours", "write 2-01:00:00"]),
        ("-5", ["cannot be read", "16:00:00"]),
        ("", ["cannot be read"]),
        ("2h", ["cannot be read", "minutes as 90"]),
        ("1:2:3:4", ["cannot be read"]),
        ("1-", ["cannot be read"]),
        ("०५", ["cannot be read"]),
        (0, ["no time"]),
        ("00:00:00", ["no time"]),
        ("900-00:00:00", ["longer than a year"]),
        (True, ["cannot be read"]),
        (1.5, ["cannot be read"]),
    ],
)
def test_a_wrong_walltime_is_refused_with_value_and_fix(wrong: object, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        parse_walltime(wrong)  # type: ignore[arg-type]
    for word in (f"walltime={wrong!r}", "write", *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("1O G", ["cannot be read", "85G"]),
        ("85 G", ["cannot be read"]),
        ("85GB", ["cannot be read", "85G"]),
        ("-3G", ["cannot be read"]),
        ("3K", ["cannot be read", "M, G or T"]),
        ("1.5G", ["no whole number", "write 1536M"]),
        ("0.1M", ["no whole number"]),
        (0, ["no memory"]),
        ("5000T", ["more than a pebibyte"]),
        (False, ["cannot be read"]),
    ],
)
def test_a_wrong_amount_of_memory_is_refused_with_value_and_fix(wrong: object, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        parse_memory(wrong)  # type: ignore[arg-type]
    for word in (f"memory={wrong!r}", "write", *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("given_words", "expected"),
    [
        ({"walltime": "12:99:00"}, "walltime='12:99:00' has 99 minutes"),
        ({"memory": "lots"}, "memory='lots' cannot be read"),
        ({"cores": 0}, "cores=0"),
        ({"gpus": -1}, "gpus=-1"),
        ({"gpus": True}, "gpus=True"),
    ],
)
def test_a_wrong_request_is_refused_with_key_and_value(given_words: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError) as error:
        validate_config(ResourceRequest, given_words)
    assert str(error.value).startswith(expected)


def test_a_request_keeps_what_was_said_in_one_notation() -> None:
    request = ResourceRequest(walltime=90, memory="2048", gpus=0)
    assert request.explicit_values() == {"walltime": "01:30:00", "memory": "2G", "gpus": 0}
    assert (request.walltime_s, request.memory_mib) == (5400, 2048)
    assert ResourceRequest().explicit_values() == {}


def test_resources_are_described_in_one_line() -> None:
    assert Resources(walltime_s=57_600, memory_mib=131_072, cores=8, gpus=1, gpu_type="v100").describe() == (
        "16:00:00, 128G, 8 cores, 1 GPU (v100)"
    )
    assert Resources(walltime_s=90_000, memory_mib=1000).describe() == "1-01:00:00, 1000M, 1 core"
    assert Resources(walltime_s=60, memory_mib=1024, gpus=2).describe() == "00:01:00, 1G, 1 core, 2 GPUs"
