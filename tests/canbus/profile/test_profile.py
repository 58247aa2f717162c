"""Whether a profile is of a log's vehicle."""

import numpy as np

from kdgat.canbus.profile import FITS_S, learn_profile
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
