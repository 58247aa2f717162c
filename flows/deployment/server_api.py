"""The server of deployments, asked over HTTP alone: a person would wait seconds for the import of Prefect's client."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from flows.deployment.installation import CLIENT_AUTH_VARIABLE, HOME_VARIABLE, POOL, Installation
from flows.deployment.servers import home_of_server, servers_text
from flows.loopback import is_here, may_be_told
from flows.server import API_URL_VARIABLE, configured_api_url

TIMEOUT_S: Final = 30.0
BUSY_TRIES: Final = 10  # two writers met in SQLite: nothing was written, and the server asks for another try
BUSY_PAUSE_S: Final = 1.0
ONLINE: Final = "ONLINE"
PAGE: Final = 200  # how many rows the server returns at once


class ServerError(ValueError):
    """No server answers as it should; the text names its address and the fix."""


class UnreachableError(ServerError):
    """The server does not answer at this moment."""


class RefusedError(ValueError):
    """The server refuses parameters, and has started nothing; the text is its reason."""


@dataclass(frozen=True)
class ServerAddress:
    """Where a server answers, the string that it asks for, and the home of its installation where that is known."""

    url: str
    auth_string: str
    home: Path | None

    @property
    def ui(self) -> str:
        """Return the address of its pages."""
        return self.url.rstrip("/").removesuffix("/api")


def find_server() -> ServerAddress:
    """Find the server that PREFECT_API_URL names, else the one of the installation, else the one of Prefect's profile.

    Raises:
        ServerError: if there is none, naming the servers of this user that run.
    """
    url = os.environ.get(API_URL_VARIABLE)
    here = Installation.find()
    if not url and here.path.is_file():
        return ServerAddress(here.url, here.auth_string if here.auth else "", here.home)
    url = url or configured_api_url()
    if not url:
        raise ServerError(
            f"no server is known: {API_URL_VARIABLE} is not set, and there is no {here.path}: `make deploy` starts one"
            f"{servers_text('export {variable}={home}')}"
        )
    home = _home_at(url)
    auth_string = os.environ.get(CLIENT_AUTH_VARIABLE, "")
    if not auth_string and home is not None:
        known = Installation.find({HOME_VARIABLE: str(home)})
        auth_string = known.auth_string if known.auth else ""
    return ServerAddress(url.rstrip("/"), auth_string, home)


class ServerApi:
    """Ask a server. Whoever is meant by a string of an installation is known before it is sent."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        user, _, password = address.auth_string.partition(":")
        self._client = httpx.Client(
            timeout=TIMEOUT_S,
            auth=(user, password) if address.auth_string else None,
            trust_env=not is_here(urlsplit(address.url).hostname),  # no proxy leads to this machine
        )

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Return what the server answers; None where it has nothing of that name.

        Raises:
            UnreachableError: if it does not answer.
            RefusedError: if it refuses what was sent.
            ServerError: if it does not let this process in, or fails.
        """
        self._require_ours()
        for _ in range(BUSY_TRIES):
            try:
                answer = self._client.request(method, f"{self.address.url}{path}", json=content)
            except httpx.HTTPError as error:
                raise UnreachableError(self._unreachable(str(error) or type(error).__name__)) from error
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(BUSY_PAUSE_S)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise ServerError(
                f"{self.address.url} asks for another string: set -a; . HOME/installation.env; set +a, with the HOME "
                "of its installation"
            )
        if answer.status_code in (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.BAD_REQUEST):
            raise RefusedError(_detail(answer))
        if answer.is_error:
            raise UnreachableError(f"{self.address.url} answers {answer.status_code}: {_detail(answer)}")
        return answer.json() if answer.content else None

    def deployments(self) -> dict[str, dict[str, Any]]:
        """Return all deployments by name, `FLOW/DEPLOYMENT`."""
        flows = {row["id"]: row["name"] for row in self._all("/flows/filter")}
        rows = {f"{flows.get(row['flow_id'], '')}/{row['name']}": row for row in self._all("/deployments/filter")}
        return dict(sorted(rows.items()))

    def flow_run(self, run_id: str) -> dict[str, Any]:
        """Return a flow run; ServerError if somebody has removed it."""
        found: dict[str, Any] | None = self.ask("GET", f"/flow_runs/{run_id}")
        if found is None:
            raise ServerError(f"flow run {run_id} is not there any more: somebody has removed it")
        return found

    def flow_runs(self, **filters: Any) -> list[dict[str, Any]]:
        """List flow runs, the one first that began last."""
        found: list[dict[str, Any]] = self.ask("POST", "/flow_runs/filter", {**filters, "sort": "START_TIME_DESC"})
        return found

    def has_worker(self, pool: str = POOL) -> bool:
        """Tell whether the server has heard of a worker of the pool lately."""
        rows = self.ask("POST", f"/work_pools/{pool}/workers/filter", {}) or []
        return any(row["status"] == ONLINE for row in rows)

    def _all(self, path: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while page := self.ask("POST", path, {"limit": PAGE, "offset": len(rows)}):
            rows += page
            if len(page) < PAGE:
                break
        return rows

    def _require_ours(self) -> None:
        """Send a string to nobody on this machine before the kernel says that a process of ours listens."""
        if self.address.auth_string and not may_be_told(self.address.url):
            raise UnreachableError(self._unreachable("no process of yours listens there"))

    def _unreachable(self, reason: str) -> str:
        home = self.address.home
        fix = f"`{HOME_VARIABLE}={home} make deploy` starts it" if home is not None else f"check {API_URL_VARIABLE}"
        return f"the server does not answer at {self.address.url} ({reason}): {fix}"


def _home_at(url: str) -> Path | None:
    address = urlsplit(url)
    return home_of_server(address.port or 80) if is_here(address.hostname) else None


def _detail(answer: httpx.Response) -> str:
    try:
        content = answer.json()
    except ValueError:
        return answer.text.strip()
    found = content.get("detail", content) if isinstance(content, dict) else content
    return " ".join(str(found).split())
