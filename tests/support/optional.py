"""Packages that only some tests need."""

import importlib.util
import os

import pytest


def need_package(name: str) -> None:
    """Skip a test for want of a package of `kdgat[loggers]`, or fail it in continuous integration, which skips none."""
    if importlib.util.find_spec(name) is not None:
        return
    reason = f"{name} is missing: make loggers, or pip install 'kdgat[loggers]'"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
