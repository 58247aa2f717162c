"""Which tier a test belongs to follows from what it needs; one Prefect server serves a whole run of the tests.

Hypothesis tries new examples on a developer's machine, and the same ones each time in continuous integration.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from tests.support import command_line, processes
from tests.support.hashed_bytes import HashedBytes
from tests.support.servers import PrefectServer

# No deadline anywhere: how long an example takes is the machine's business.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# Torch and Prefect make a million objects when they are imported, which stay: looking through them for garbage again
# and again took a quarter of the time of the tests.
gc.disable()

# Under nohup children inherit that SIGHUP is ignored, and those that tests hang up go on. Handlers are not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# The same with SIGINT where a shell without job control has put the tests behind `&`.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
# What has to be installed or started: path below tests, or name of a fixture -> mark.
NEEDED_BY_PATH = {
    "slurm": "slurm",
    "slurm/test_image.py": "image",
    "container/test_cpu_image.py": "image",
}
NEEDED_BY_FIXTURE = {
    "slurm": "slurm",
    "prefect_server": "prefect",
    "installed": "prefect",
    "tiny": "image",
}
SERVICES = ("slurm", "prefect", "image")
_processes = processes.Guard()
# Modules of minutes, begun first: the one that begins last is what all other workers wait for.
LONGEST = (
    "slurm/test_faults.py",
    "deployments/test_deploy.py",
    "slurm/test_whole_flow.py",
    "slurm/test_tutorial.py",
    "flows/test_nightly.py",
    "slurm/test_progressive.py",
    "slurm/test_slurm_attempts.py",
    "flows/test_pool.py",
    "training/test_resume.py",
    "slurm/test_outliving.py",
    "slurm/test_ended_commands.py",
    "flows/test_can.py",
    "docs/test_tutorials.py",
    "flows/test_attempts.py",
    "slurm/test_scheduler.py",
    "family/test_batch_size.py",
    "flows/test_server.py",
    "slurm/test_single_stage.py",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests on pretended CUDA to the pytest that has it (make test-cuda): torch must not be imported before."""
    is_there = config.pluginmanager.has_plugin("tests.pretended_cuda.plugin")
    return True if collection_path == TESTS / "pretended_cuda" and not is_there else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by what it needs."""
    if not isinstance(item, pytest.Function):
        return
    path = item.path.relative_to(TESTS)
    for place in (path, *path.parents):
        if str(place) in NEEDED_BY_PATH:
            item.add_marker(NEEDED_BY_PATH[str(place)])
    for name in item.fixturenames:
        if name in NEEDED_BY_FIXTURE:
            item.add_marker(NEEDED_BY_FIXTURE[name])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules."""
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Collect garbage again, of what tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test, and its fixtures, start Python processes only where its mark says so."""
    may = any(item.get_closest_marker(name) for name in (processes.MARK, *SERVICES))
    _processes.watched = None if may else item.name
    try:
        return (yield)
    finally:
        _processes.watched = None


@pytest.fixture(autouse=True)
def no_service_without_its_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test that starts a Prefect server fail unless it is marked so, and give nobody another test's server."""
    if not any(request.node.get_closest_marker(name) for name in SERVICES):
        monkeypatch.setenv("KDGAT_SERVER_START_TIMEOUT_S", "0")
    if "prefect_server" not in request.fixturenames:
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
            monkeypatch.delenv(name, raising=False)
    else:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()  # which a test without the server may have read anew


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> HashedBytes:
    """Count the bytes of files that are hashed in this process."""
    counter = HashedBytes()
    monkeypatch.setattr("kdgat.base.files.hashlib", SimpleNamespace(sha256=counter))
    return counter


@pytest.fixture(scope="session")
def kdgat() -> Callable[..., command_line.Answer]:
    """Return `kdgat` to be called with the words of a command line, in this process."""
    return command_line.kdgat


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One embedded Prefect API for all tests that ask for it; PREFECT_API_URL leads them there."""
    from flows.embedded.server import prefect_api

    path = tmp_path_factory.mktemp("prefect")
    with prefect_api(path / "prefect.db", path / "server.log") as url:
        yield PrefectServer(url)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real image of a few megabytes: a shell, cat, sleep, id."""
    from tests.container.built import build_tiny_image

    return build_tiny_image(tmp_path_factory.mktemp("tiny") / "tiny.sif")
