"""What is known of one's own car: a profile, learned from minutes without attacks; names of its signals."""

from kdgat.canbus.profile.database import Database
from kdgat.canbus.profile.learning import learn_profile
from kdgat.canbus.profile.profile import FITS_S, Profile

__all__ = ["FITS_S", "Database", "Profile", "learn_profile"]
