"""The first command on a machine does not wait for the compiler, and a killed compilation leaves no damage."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from kdgat.assignment import fallback, solve
from tests.support.waiting import wait_until


def compiling(cache: Path) -> int | None:
    """Return the number of the process that compiles into a cache, once it does."""
    found = [lock.read_text() for lock in cache.rglob(fallback.LOCK)]
    return int(found[0]) if found and found[0].endswith("\n") else None


@pytest.mark.processes
def test_first_call_is_answered_by_scipy_and_compiles_meanwhile(tmp_path: Path) -> None:
    cost = np.random.default_rng(0).random((50, 60))
    np.save(tmp_path / "cost.npy", cost)
    cache = tmp_path / "cache"
    environment = {name: value for name, value in os.environ.items() if name != fallback.VARIABLE}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "kdgat.cli.main", "lap", "solve", str(tmp_path / "cost.npy")],
            capture_output=True,
            text=True,
            env=environment | {"NUMBA_CACHE_DIR": str(cache)},
            check=True,
        )
        printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert float(printed["cost"].split()[0]) == pytest.approx(cost[linear_sum_assignment(cost)].sum())
        assert printed["optimal"].startswith("proved")
        assert printed["solver"].startswith("scipy, duals and proof by kdgat")
        wait_until(lambda: compiling(cache) is not None, "a process that compiles")
        os.kill(compiling(cache), signal.SIGKILL)
        for lock in cache.rglob(fallback.LOCK):
            lock.unlink()


def test_kernels_that_were_used_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("core", "dense"):
        solve(np.random.default_rng(0).random((160, 160)), method=method)
    solve(np.where(np.random.default_rng(0).random((160, 160)) < 0.05, 0.5, 1.0))
    solve(np.random.default_rng(0).random((20, 20)))
    assert fallback.is_compiled()
    monkeypatch.setenv(fallback.VARIABLE, "later")
    with pytest.raises(fallback.CompileSettingError, match="KDGAT_LAP_COMPILE is 'later': wait or background"):
        fallback.may_wait()


@pytest.mark.parametrize(("number", "compiles"), [(errno.ENOLCK, True), (errno.ENOSYS, True), (errno.EACCES, False)])
def test_kernels_are_compiled_where_there_are_no_locks_and_not_beside_another_process_that_does(
    monkeypatch: pytest.MonkeyPatch, number: int, compiles: bool
) -> None:
    def refuse(file: object, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    calls: list[bool] = []
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    monkeypatch.setattr(fallback, "compile_all", lambda: calls.append(True))
    fallback.main()
    assert bool(calls) == compiles
