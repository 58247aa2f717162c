"""A profile of one's own car: learned from minutes without attacks, kept as one file, used by the habits' detector."""

from kdgat.canbus.profile.learning import learn_profile
from kdgat.canbus.profile.profile import Profile

__all__ = ["Profile", "learn_profile"]
