"""A first call that compiles says so once; one that finds machine code says nothing."""

from typing import Any

import numba
import pytest

from kdgat.cli.compilation import COMPILING, compilation_told


def two_kernels() -> tuple[Any, Any]:
    """Return functions that nothing has compiled yet, and that no cache keeps."""
    return numba.njit(lambda x: x + 1), numba.njit(lambda x: x + 2)


def test_the_first_kernel_that_is_compiled_is_told_of_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_kernels()
    with compilation_told(quiet=False):
        assert capsys.readouterr().err == ""
        first(1)
        second(1)
    assert capsys.readouterr().err == f"{COMPILING}\n"
    with compilation_told(quiet=False):
        first(1)
    assert capsys.readouterr().err == "", "it is compiled already"


def test_quiet_and_afterwards_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_kernels()
    with compilation_told(quiet=True):
        first(1)
    with compilation_told(quiet=False):
        pass
    second(1)
    assert capsys.readouterr().err == ""
