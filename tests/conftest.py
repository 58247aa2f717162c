"""Hypothesis tries new examples on a developer's machine, and the same ones each time in continuous integration."""

import os

from hypothesis import settings

# No deadline anywhere: how long an example takes is the machine's business.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
