"""A real installation for tests: server, worker and deployments as `make deploy` sets them up, in its own folder."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.deployment.installation import Installation
from kdgat.canbus.simulation import write_dataset
from tests.support.waiting import TIMEOUT_S, wait_until

ROOT = Path(__file__).parents[2]


class Installed:
    """One installation, and the commands that people give to it."""

    def __init__(self, path: Path, **variables: str) -> None:
        data_root = path / "data"
        write_dataset(data_root, "synthetic", "tiny")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "KDGAT_"))},
            "KDGAT_HOME": str(path / "home"),
            "KDGAT_PORT": str(free_port()),
            "KDGAT_DATA_ROOT": str(data_root),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "400",
            **variables,
        }

    @property
    def here(self) -> Installation:
        return Installation.find(self.environment)

    def command(self, word: str) -> "subprocess.CompletedProcess[str]":
        """Give `python -m flows.deployment WORD`."""
        return subprocess.run(
            [sys.executable, "-m", "flows.deployment", word],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def prefect(self, *words: str, timeout_s: float = TIMEOUT_S) -> "subprocess.CompletedProcess[str]":
        """Give a command of Prefect, as a person does who has exported PREFECT_API_URL, or read installation.env."""
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *words],
            cwd=self.environment["KDGAT_HOME"],
            env={
                **self.environment,
                **(self.here.environment() if self.here.auth else {"PREFECT_API_URL": self.here.url}),
            },
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def watched_run(self, deployment: str, **parameters: Any) -> "subprocess.CompletedProcess[str]":
        """Give `prefect deployment run DEPLOYMENT --watch`."""
        return self.prefect("deployment", "run", deployment, "--watch", *as_parameters(parameters))

    def start_run(self, deployment: str, **parameters: Any) -> str:
        """Start a run by the API, which saves the start of a command, and return its id."""
        found = self.api("GET", f"/deployments/name/{deployment}")
        run = self.api("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(run["id"])

    def run_that_is_refused(self) -> dict[str, Any]:
        """Start a run with a mistake that only the flow can find, and return what the server knows of it."""
        answer = self.watched_run("can/synthetic", overrides=["training.max_epoch=5"])
        assert answer.returncode == 1, answer.stdout + answer.stderr + self.log()
        assert "did you mean 'max_epochs'?" in answer.stdout
        assert "Traceback" not in answer.stdout
        (failed,) = self.api("POST", "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
        return dict(failed)

    def api(self, method: str, path: str, content: Any = None) -> Any:
        """Ask the server."""
        import httpx

        user, _, password = self.here.auth_string.partition(":")
        auth = (user, password) if self.here.auth else None
        give_up_at = time.monotonic() + TIMEOUT_S
        with httpx.Client(trust_env=False, timeout=60.0, auth=auth) as client:
            while True:
                try:
                    answer = client.request(method, f"{self.here.url}{path}", json=content)
                except httpx.ReadTimeout:  # a machine that is busy with everything else
                    if not path.endswith(("/filter", "/count")) or time.monotonic() > give_up_at:
                        raise
                    continue
                # Two writers met in SQLite: nothing was written, and the server asks for another try, which Prefect's
                # own clients make without a word.
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > give_up_at:
                    break
                time.sleep(1.0)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def run_state(self, run_id: str) -> dict[str, Any]:
        """Return the state of a flow run: `type`, `name` and `message`."""
        state: dict[str, Any] = self.api("GET", f"/flow_runs/{run_id}")["state"]
        return state

    def task_states(self, run_id: str) -> set[str]:
        """Return the types of the states that the task runs of a flow run are in."""
        tasks = self.api("POST", "/task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
        return {task["state"]["type"] for task in tasks}

    def wait_for_state(self, run_id: str, *names: str) -> dict[str, Any]:
        """Wait until a run is in one of these states."""
        wait_until(lambda: self.run_state(run_id)["name"] in names, f"{names} of {run_id}", log=self.log)
        return self.run_state(run_id)

    def log(self) -> str:
        """Return what server and worker said last."""
        home = Path(self.environment["KDGAT_HOME"])
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(home.glob("*.log")))

    def environments(self) -> list[str]:
        """Return the environment of each process that has to do with this installation."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/environ").read_text(errors="replace"))
        return found

    def processes(self) -> dict[int, str]:
        """Return the processes that have to do with this installation, with their commands."""
        found = {}
        marker = f"KDGAT_HOME={self.environment['KDGAT_HOME']}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if marker in (entry / "environ").read_bytes():
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        if command:
                            found[int(entry.name)] = command
                except OSError:
                    continue
        return found


def as_parameters(parameters: Mapping[str, Any]) -> list[str]:
    """Write parameters as options of `prefect deployment run`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
    return [word for name, text in texts.items() for word in ("--param", f"{name}={text}")]


def free_port() -> int:
    """Find a port on the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
