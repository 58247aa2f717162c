"""What signals do to a process that promised to stop in order, sent to a real one."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.signals import STOP_SIGNALS

pytestmark = pytest.mark.processes

TIMEOUT_S = 60.0
# Writes down how it is asked, in a loop as a flow's.
PROGRAM = """
import json, sys, time
from pathlib import Path
from flows.signals import stop_on_signals
from kdgat.cluster.child import StopRequest
from kdgat.cluster.site import Site

path, stop, site = Path(sys.argv[1]), StopRequest(), Site(name="here", **json.loads(sys.argv[3]))
with stop_on_signals(stop, site, lambda: sys.argv[4] and eval(sys.argv[4])):
    if sys.argv[2]:
        stop.set(sys.argv[2])
    while True:
        print("working", flush=True)
        state = f"{stop.is_set()} {stop.reason} {stop.insisted}" + " jobs go on" * stop.leaves_jobs
        path.with_suffix(".new").write_text(state)
        path.with_suffix(".new").rename(path)
        time.sleep(0.02)
"""


CLUSTER = {"scheduler": "slurm"}


class Flow:
    """A process of its own, and what it wrote down last."""

    def __init__(
        self,
        path: Path,
        *,
        wrapper: tuple[str, ...] = (),
        terminal: int | None = None,
        stopped_by: str = "",
        site: dict[str, str] | None = None,
        is_cancelled: str = "",
    ) -> None:
        self.path, self.log_path, of_site = path / "state", path / "log", json.dumps(site or {})
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *wrapper,
                    sys.executable,
                    "-c",
                    PROGRAM,
                    str(self.path),
                    stopped_by,
                    of_site,
                    is_cancelled,
                ],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=log if terminal is None else terminal,
                stderr=log if terminal is None else terminal,
                cwd=Path(__file__).parents[2],
            )
        self.wait_for(f"{bool(stopped_by)} {stopped_by} False")

    def wait_for(self, state: str) -> None:
        give_up_at = time.monotonic() + TIMEOUT_S
        while not self.path.exists() or self.path.read_text() != state:
            assert self.process.poll() is None, self.log_path.read_text()
            assert time.monotonic() < give_up_at, self.path.read_text()
            time.sleep(0.02)

    def goes_on(self) -> bool:
        """Tell whether it still writes; waits until it has."""
        before, give_up_at = self.path.stat().st_mtime_ns, time.monotonic() + TIMEOUT_S
        while self.path.stat().st_mtime_ns == before and time.monotonic() < give_up_at:
            time.sleep(0.02)
        return self.path.stat().st_mtime_ns != before and self.process.poll() is None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Flow]]:
    with contextlib.ExitStack() as stack:

        def run(**how: object) -> Flow:
            flow = Flow(tmp_path, **how)  # type: ignore[arg-type]
            stack.callback(flow.process.wait)
            stack.callback(flow.process.kill)
            return flow

        yield run


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_asks_the_second_insists_the_third_ends(start: Callable[..., Flow], number: int) -> None:
    name, flow = signal.Signals(number).name, start()
    flow.process.send_signal(number)
    flow.wait_for(f"True {name} False")
    assert f"{name}: the stages write their checkpoints and stop" in flow.log_path.read_text()
    flow.process.send_signal(number)
    flow.wait_for(f"True {name} True")
    assert "once more ends this command" in flow.log_path.read_text()
    flow.process.send_signal(number)
    assert flow.process.wait(TIMEOUT_S) == -number


def test_the_first_signal_after_a_stop_from_elsewhere_insists_on_nothing(start: Callable[..., Flow]) -> None:
    flow = start(stopped_by="a cancellation in Prefect")
    flow.process.send_signal(signal.SIGTERM)  # what a worker sends to a run that is cancelled
    assert flow.goes_on()
    flow.wait_for("True a cancellation in Prefect False")
    flow.process.send_signal(signal.SIGTERM)
    flow.wait_for("True a cancellation in Prefect True")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_jobs_go_on_without_a_command_that_nobody_stopped(start: Callable[..., Flow], number: int) -> None:
    name, flow = signal.Signals(number).name, start(site=CLUSTER)
    flow.process.send_signal(number)
    flow.wait_for(f"True {name} False jobs go on")
    assert f"{name}: the jobs go on" in flow.log_path.read_text()
    flow.process.send_signal(number)  # the shell and the kernel both say that a terminal is lost
    assert flow.goes_on()
    flow.wait_for(f"True {name} False jobs go on")
    flow.process.send_signal(signal.SIGINT)
    flow.wait_for(f"True {name} True jobs go on")


@pytest.mark.parametrize(
    ("site", "number", "is_cancelled", "reason"),
    [
        (CLUSTER, signal.SIGINT, "", "SIGINT"),
        ({**CLUSTER, "on_lost_flow": "stop"}, signal.SIGTERM, "", "SIGTERM"),
        (CLUSTER, signal.SIGTERM, "True", "a cancellation in Prefect"),
    ],
    ids=["Ctrl-C", "a site that wants it so", "a run that is cancelled in Prefect"],
)
def test_jobs_stop_with_a_command_that_somebody_stopped(
    start: Callable[..., Flow], site: dict[str, str], number: int, is_cancelled: str, reason: str
) -> None:
    flow = start(site=site, is_cancelled=is_cancelled)
    flow.process.send_signal(number)
    flow.wait_for(f"True {reason} False")


def test_jobs_go_on_where_nobody_says_whether_the_run_is_cancelled(start: Callable[..., Flow]) -> None:
    flow = start(site=CLUSTER, is_cancelled="1 / 0")
    flow.process.send_signal(signal.SIGTERM)
    flow.wait_for("True SIGTERM False jobs go on")


def test_under_nohup_a_hangup_asks_for_nothing(start: Callable[..., Flow]) -> None:
    flow = start(wrapper=("nohup",))
    flow.process.send_signal(signal.SIGHUP)
    assert flow.goes_on()
    flow.process.send_signal(signal.SIGTERM)
    flow.wait_for("True SIGTERM False")


def test_a_lost_terminal_asks_for_a_stop_and_what_is_printed_then_is_no_error(start: Callable[..., Flow]) -> None:
    ours, terminal = pty.openpty()
    flow = start(wrapper=("setsid", "--ctty"), terminal=terminal)
    os.close(terminal)
    os.close(ours)
    flow.wait_for("True SIGHUP False")
    assert flow.goes_on()


def test_importing_what_submits_jobs_leaves_ctrl_c_as_it_is() -> None:
    program = (
        "import signal; before = signal.getsignal(2); import flows.dask_jobs; assert signal.getsignal(2) is before"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
