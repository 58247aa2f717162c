"""What only some tests need: packages, programs."""

import importlib.util
import os
from typing import NoReturn

import pytest


def lack(reason: str) -> NoReturn:
    """Skip and say what is lacking; in continuous integration that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"continuous integration skips none: {reason}", pytrace=False)
    pytest.skip(reason)


def need_package(name: str) -> None:
    """Skip a test for want of a package of `kdgat[loggers]`."""
    if importlib.util.find_spec(name) is None:
        lack(f"{name} is missing: make loggers, or pip install 'kdgat[loggers]'")
