"""A run of a deployment, followed to its end as its server and its files tell of it."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from flows.deployment.server_api import ServerApi, ServerError, UnreachableError
from kdgat.run.end import RunEnd

POLL_S: Final = 1.0
OUTAGE_S: Final = 120.0  # of the server, after which it is no longer waited for
PATIENCE_S: Final = 30.0  # until something is said of a run that nobody begins
INFO: Final = 20
RUN_LOGGER: Final = "prefect.flow_runs"
LOG_PAGE: Final = 200
ENDED: Final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
SUSPENDED: Final = "Suspended"
TAKEN: Final = "concurrency limit reached"  # in what Prefect says of a run that came second
# What Prefect writes before the sentence of an exception, and the class of that.
_BEFORE: Final = re.compile(
    r"^(?:Flow run encountered an exception|Task run encountered an exception|Validation of flow parameters failed"
    r" with error|Execution was interrupted by an unexpected exception):?\s*"
)
_OF_PREFECT: Final = (
    *("Beginning ", "Finished in state", "Created ", "Executing ", "View at ", "Opening process", "Downloading "),
    *("Running ", "Deployment step ", "All deployment steps "),
    *("Engine execution exited", "Encountered exception"),  # with a traceback; the reason is the run's state
)
_INNER: Final = "training: "  # of a night whose own flow of training failed
_CLASS: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ")


class Following:
    """Watch one run; `wait` may be interrupted and called again.

    Args:
        api: of its server.
        run_id: of the run.
        output: in which its stages run; None for a night, and for what trains nothing.
        is_night: it trains in a run of its own, and tells in its log what it does.
        show: called once with the output directory in which stages run.
        tell: called with each sentence that a person should read meanwhile.
    """

    def __init__(
        self,
        api: ServerApi,
        run_id: str,
        output: Path | None,
        *,
        is_night: bool,
        show: Callable[[Path], None],
        tell: Callable[[str], None],
    ) -> None:
        self._api, self.id, self._is_night = api, run_id, is_night
        self._show, self._tell = show, tell
        self.output: Path | None = None  # once it is known
        self._began = time.monotonic()
        self._told: set[str] = set()
        self._num_lines = 0
        self._compares = False
        self._silent_since: float | None = None
        if output is not None:
            self._found_output(output)

    def wait(self) -> RunEnd:
        """Return how the run ended.

        Raises:
            ServerError: if its server is silent for two minutes, or somebody has removed the run.
        """
        while True:
            try:
                run = self._api.flow_run(self.id)
                self._silent_since = None
                state = run["state"] or {"type": "", "name": "", "message": ""}
                if self._is_night:
                    self._look_into_night()
                if state["type"] in ENDED or state["name"] == SUSPENDED:
                    return as_end(state)
                self._tell_waiting(state["type"])
            except UnreachableError as error:
                self._bear(error)
            time.sleep(POLL_S)

    def _tell_waiting(self, kind: str) -> None:
        if kind == "SCHEDULED" and time.monotonic() - self._began > PATIENCE_S:
            self._tell_once("no worker has taken it yet, it waits for one: `make deployed` shows whether one runs")

    def _bear(self, error: UnreachableError) -> None:
        self._tell_once("the server does not answer; the run does not depend on it")
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since > OUTAGE_S:
            raise ServerError(f"{error}; the run goes on by itself if its process does") from error

    def _look_into_night(self) -> None:
        """Tell what the night says of itself, and show the run that trains."""
        logs = {"flow_run_id": {"any_": [self.id]}, "level": {"ge_": INFO}, "task_run_id": {"is_null_": True}}
        page = {"logs": logs, "sort": "TIMESTAMP_ASC", "offset": self._num_lines, "limit": LOG_PAGE}
        for line in self._api.ask("POST", "/logs/filter", page) or []:
            self._num_lines += 1
            if line["name"] == RUN_LOGGER and line.get("task_run_id") is None and _is_of_night(line["message"]):
                self._tell(line["message"])
        if self.output is None:
            below = self._api.flow_runs(flow_runs={"parent_flow_run_id": {"any_": [self.id]}})
            if below and below[0]["parameters"].get("out"):
                self._found_output(Path(below[0]["parameters"]["out"]))
        elif not self._compares:
            tasks = {"flow_runs": {"id": {"any_": [self.id]}}, "task_runs": {"name": {"any_": ["comparison"]}}}
            self._compares = bool(self._api.ask("POST", "/task_runs/filter", tasks))
            if self._compares:
                self._tell("comparison: the models score the same recordings")

    def _found_output(self, path: Path) -> None:
        self.output = path
        self._show(path)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def as_end(state: Mapping[str, Any]) -> RunEnd:
    """Return how a run ended as its state says it."""
    message = plain_message(state.get("message") or "")
    if state["type"] == "COMPLETED":
        return RunEnd("completed", message)
    if state["name"] == SUSPENDED:
        return RunEnd("stopped", message or "suspended: Resume in the UI goes on with it")
    if state["type"] == "CANCELLED" and TAKEN in message:
        return RunEnd(
            "failed", "another run has its dataset, so this one was not begun: wait for its end, and try again"
        )
    if state["type"] == "CANCELLED":
        return RunEnd("stopped", message or "cancelled")
    return RunEnd("failed", message or f"the run ended as {state['name']}")


def plain_message(message: str) -> str:
    """Return the sentence of a state's message in one line, without the class of the exception before it."""
    lines = message.strip().splitlines()
    text = _CLASS.sub("", _BEFORE.sub("", lines[0])) if lines else ""
    if text.startswith(_INNER):
        text = _INNER + _CLASS.sub("", _BEFORE.sub("", text.removeprefix(_INNER)))
    return " ".join([text, *(line.strip() for line in lines[1:])]).strip()


def began_at(run: Mapping[str, Any]) -> float:
    """Return when a run began, or was made, in seconds since the epoch."""
    moment = run.get("start_time") or run["created"]
    return datetime.fromisoformat(str(moment).replace("Z", "+00:00")).timestamp()


def _is_of_night(message: str) -> bool:
    """Tell what the night says from what Prefect says of every run."""
    return not message.startswith(_OF_PREFECT)
