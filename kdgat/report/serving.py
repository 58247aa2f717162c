"""A report in the browser of another machine: served on the loopback, reached through a tunnel, or copied."""

from __future__ import annotations

import getpass
import hmac
import logging
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from kdgat.base import UserError

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
_SPECIAL: Final = re.compile(r"[^\w@%+=:,./-]", re.ASCII)  # characters that mean something to a shell
USUAL_PORT: Final = 8765  # in a command that somebody gives later: which port is free then nobody knows


class ReportServer(ThreadingHTTPServer):
    """Serve one report, and nothing else, to who knows its address.

    The loopback belongs to everybody who is logged in on the machine: the address holds a word that cannot be guessed.

    Args:
        report: the file; each request reads it as it is then.
        port: on the loopback; 0 takes a free one.
        renew: is called before each request with what it has returned last: it writes the report of a run that goes on
            anew, and returns after how many seconds the browser asks again, or 0.
        refresh_s: what stands for that at the first request.

    Raises:
        UserError: if the port is taken, or may not be used.
    """

    daemon_threads = True

    def __init__(
        self, report: Path, port: int = 0, renew: Callable[[int], int] = lambda last_s: 0, refresh_s: int = 0
    ) -> None:
        self.report, self.refresh_s = report, refresh_s
        self._renew, self._failure = renew, ""
        self.path = f"/{secrets.token_urlsafe(16)}/{report.name}"
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; leave --port out, and a free port is taken") from error

    @property
    def url(self) -> str:
        """Return the address of the report."""
        return f"http://{HOST}:{self.server_port}{self.path}"

    def renew(self) -> None:
        """Write the report anew if it is time; what keeps it from that is logged once, and the last page stays."""
        try:
            self.refresh_s = self._renew(self.refresh_s)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:
                logger.warning("%s stays as it is: %s", self.report, failure)
            self._failure = failure


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "kdgat", ""

    def do_GET(self) -> None:
        """Send the report, or say that there is nothing else."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send what comes before the report."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal has the address and how to reach it."""

    def _answer(self, *, with_body: bool) -> None:
        if not hmac.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.server.renew()
        try:
            content = self.server.report.read_bytes()
        except OSError as error:
            self.send_error(HTTPStatus.NOT_FOUND, f"{self.server.report.name}: {error.strerror}")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.server.refresh_s:  # not in the page: a copy of it has nothing to follow
            # Without an address a browser at a heading (#curves) goes there again instead of asking.
            self.send_header("Refresh", f"{self.server.refresh_s}; url={self.server.path}")
        self.end_headers()
        if with_body:
            self.wfile.write(content)


def tunnel_command(port: int) -> str:
    """Return the command that another machine reaches a port of this one by."""
    return f"ssh -L {port}:{HOST}:{port} {_login()}"


def copy_command(report: Path) -> str:
    """Return the command that copies a report to another machine.

    Its path is read by the shell there, and then by another one here, or, since OpenSSH 9, as a pattern: to both a
    backslash stands before a character that means itself.
    """
    path = _SPECIAL.sub(r"\\\g<0>", str(report.absolute()))
    return f"scp {shlex.quote(f'{_login()}:{path}')} ."


def serve_command(run: Path) -> str:
    """Return the command that another machine serves the report of a run by, without a copy."""
    kdgat = shlex.join([str(Path(sys.executable).with_name("kdgat")), "report", str(run.absolute())])
    remote = shlex.quote(f"{kdgat} --serve --port {USUAL_PORT}")  # ssh joins its words, and the shell there splits them
    return f"{tunnel_command(USUAL_PORT).replace('ssh ', 'ssh -t ', 1)} {remote}"


def _login() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
