"""A profile's file, and whether it is of a log's vehicle."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.canbus.profile import FITS_S, Profile, learn_profile
from tests.canbus.profile.car import drive, rows_of


def test_fuzzing_after_the_first_seconds_does_not_make_a_profile_misfit() -> None:
    profile = learn_profile([("a", drive(rows_of(60.0, 1)))])
    random = np.random.default_rng(1)
    times = np.arange(2.0 * FITS_S, 70.0, 1e-3)
    fuzzing = [(float(time), int(random.integers(2048)), bytes(8)) for time in times]
    attacked = drive(rows_of(70.0, 5) + fuzzing)
    assert profile.misfit(attacked.timestamp, attacked.identifier) == ""
    begun = drive(rows_of(FITS_S, 5) + [(time - 2.0 * FITS_S, one % 32, data) for time, one, data in fuzzing])
    assert "knows 6 of the" in profile.misfit(begun.timestamp, begun.identifier)


def test_what_networks_have_learned_stays_with_a_profile_that_grows(tmp_path: Path) -> None:
    first = learn_profile([("a", drive(rows_of(60.0, 1)))]).model_copy(update={"networks": [{"whose": "theirs"}]})
    grown = learn_profile([("a", drive(rows_of(60.0, 1))), ("b", drive(rows_of(20.0, 2)))], first)
    assert [one.name for one in grown.drives] == ["a", "b"], "what it knows is not learned again"
    grown.write(tmp_path / "car.json")
    assert Profile.read(tmp_path / "car.json").networks == [{"whose": "theirs"}]


def test_a_calibration_is_refused_with_what_has_taken_its_place(tmp_path: Path) -> None:
    (tmp_path / "car.json").write_text('{"schema_version": 1, "detector": "normal", "operating_point": {}}')
    with pytest.raises(UserError, match=r"is a calibration, .* `kdgat profile LOG\.\.\. --out FILE --model RUN`"):
        Profile.read(tmp_path / "car.json")
