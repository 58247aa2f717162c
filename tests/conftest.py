"""Hypothesis tries new examples on a developer's machine, and the same ones each time in continuous integration."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline anywhere: how long an example takes is the machine's business.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(scope="session")
def tiny_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real image of a few megabytes; only tests that are marked `image` want it."""
    from tests.image.built import build_tiny_image

    return build_tiny_image(tmp_path_factory.mktemp("tiny") / "tiny.sif")
