from pathlib import Path

import pytest

from kdgat.base import UserError, write_json_atomically
from kdgat.lap.plan import plan_lap
from kdgat.lap.training.schedule import (
    RATES,
    Forecast,
    fit_rates,
    forecast,
    pack,
    read_rates,
)
from tests.lap.runs import MEDIUM, SMALL, make_config, small_config

HOUR_S = 3600


def stage(name: str, hours: float) -> Forecast:
    return Forecast(f"{name}-seed0", (name,), 1, 1, 1, 1, hours * HOUR_S)


def test_consecutive_stages_share_a_job_as_long_as_there_is_time() -> None:
    # The published plan: two stages in one job of 8 hours, each of the others in a job of its own.
    hours = {"a": 4, "b": 3, "c": 6, "d": 6, "e": 7.5, "f": 6}
    jobs = pack([stage(name, one) for name, one in hours.items()], 8 * HOUR_S)
    assert jobs == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]


def test_a_stage_that_is_longer_than_a_job_shares_none() -> None:
    assert pack([stage("a", 20), stage("b", 1)], 8 * HOUR_S) == [["a"], ["b"]]


def test_a_forecast_counts_instances_steps_and_what_they_take() -> None:
    config = small_config([f"training_of.{MEDIUM}.max_epochs=3"], stages=[SMALL, MEDIUM])
    found = {one.name: one for one in forecast(config, plan_lap(config), RATES["cpu"])}
    assert list(found) == ["prepare-16", "prepare-24", f"{SMALL}-seed0", f"{MEDIUM}-seed0", "evaluation-seed0"]
    small, medium = found[f"{SMALL}-seed0"], found[f"{MEDIUM}-seed0"]
    assert (small.num_instances, small.num_graphs, small.num_steps) == (8, 4, 2 * 2)
    assert (medium.num_instances, medium.num_graphs, medium.num_steps) == (4, 2, 2 * 3)
    assert found["prepare-16"].num_instances == 12
    assert found["evaluation-seed0"].num_instances == 4
    slower = forecast(config, plan_lap(config), RATES["cpu"].model_copy(update={"step_s": 1.0}))
    assert slower[2].seconds == pytest.approx(small.seconds + 4 * (1.0 - RATES["cpu"].step_s))


def test_a_forecast_of_files_goes_by_what_they_hold() -> None:
    counts = {512: {"train": 80, "validation": 8, "test": 8}}
    config = make_config("full", stages=[SMALL])
    generated, read = (forecast(config, plan_lap(config), RATES["cpu"], given)[1] for given in (None, counts))
    assert (generated.num_instances, read.num_instances) == (1200, 80)
    assert read.seconds < generated.seconds / 10


def test_rates_are_found_again_in_what_they_would_have_taken(tmp_path: Path) -> None:
    measured = [(kept, 0.01 + 2e-9 * kept) for kept in (10**6, 10**7, 10**8)]
    rates = fit_rates("a device", measured)
    assert (rates.step_s, rates.byte_s) == pytest.approx((0.01, 2e-9), rel=1e-6)
    write_json_atomically(tmp_path / "rates.json", rates.model_dump(mode="json"))
    assert read_rates(tmp_path / "rates.json") == rates
    one = fit_rates("a device", measured[:1])
    assert one.byte_s * 10**6 == pytest.approx(measured[0][1])
    shrinking = fit_rates("a device", [(10**6, 0.3), (10**8, 0.2)])  # no line through these has a price per byte
    assert (shrinking.step_s, shrinking.byte_s) == (0.0, pytest.approx(3e-7))


def test_a_file_without_rates_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kdgat lap analyze --memory --json"):
        read_rates(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text('{"device": "x", "is_measured": true, "step_s": 1}')
    with pytest.raises(UserError, match="byte_s: required"):
        read_rates(tmp_path / "odd.json")
