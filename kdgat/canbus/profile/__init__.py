"""What is known of one's own car: a profile, learned from minutes without attacks; names of its signals."""

from kdgat.canbus.profile.database import Database
from kdgat.canbus.profile.learning import learn_profile
from kdgat.canbus.profile.profile import Profile

__all__ = ["Database", "Profile", "learn_profile"]
