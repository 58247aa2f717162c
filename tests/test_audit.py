"""The audit names what is unlike the pins, of another licence, bad or vulnerable, and says what it could not check."""

import json
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.audit import AuditError, known_bad, main, read_pins, unfit_licences, unlike_pins, vulnerabilities

ADVISORIES = {
    "a/1.0": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.1"]}],
    "b/2.0": [{"id": "PYSEC-2", "aliases": [], "fixed_in": [], "withdrawn": "2026-01-01"}],
}


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.removeprefix("/pypi/").removesuffix("/json")
        is_known = self.path.startswith("/pypi/") and not name.lower().startswith("unknown")
        self.send_response(200 if is_known else 404)
        self.end_headers()
        if is_known:
            self.wfile.write(json.dumps({"vulnerabilities": ADVISORIES.get(name, [])}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_versions_that_are_not_pinned_or_pinned_otherwise_are_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\nTorch==2.13.0\nzope.x==1 ; python_version > '3'\n")
    pins = read_pins(tmp_path / "constraints.txt")
    assert pins == {"torch": "2.13.0", "zope-x": "1"}
    found = list(unlike_pins({"torch": "2.13.0+cpu", "zope-x": "2", "new": "3", "pip": "23"}, pins))
    assert [line.split()[:2] for line in found] == [["new", "3"], ["zope-x", "2"]]


def test_a_compromised_release_is_named() -> None:
    assert [line.split(":")[0] for line in known_bad({"lightning": "2.6.3", "torch": "2.6.3"})] == ["lightning 2.6.3"]


@pytest.mark.parametrize(
    ("licence", "fault"),
    [
        ("Apache-2.0", ""),
        ("BSD License", ""),
        ("GNU Lesser General Public License v3 (LGPLv3)", ""),
        ("GNU General Public License v3 (GPLv3)", "would be that of all of kdgat"),
        ("GNU Affero General Public License v3", "would be that of all of kdgat"),
        ("MIT / GPL-2.0-or-later", "which other licence it offers"),
        ("", "is not known here"),
        ("Own licence of somebody", "is not known here"),
    ],
)
def test_a_licence_that_does_not_fit_or_is_not_known_is_a_fault(licence: str, fault: str) -> None:
    found = list(unfit_licences({"a": licence}))
    assert len(found) == bool(fault)
    assert fault in "".join(found)


def test_vulnerabilities_are_named_with_the_version_that_has_none(index: str) -> None:
    found = vulnerabilities({"a": "1.0+cpu", "b": "2.0", "c": "3.0"}, f"{index}/pypi")
    assert found == (["a 1.0+cpu: PYSEC-1 CVE-1, fixed in 1.1"], {})


@pytest.mark.parametrize("also", ["unknown", "Unknown"])  # asked last and first
def test_a_package_that_the_index_does_not_know_hides_no_vulnerability_of_others(
    index: str, also: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"a": "1.0", "c": "3.0", also: "1"}
    found, unanswered = vulnerabilities(versions, f"{index}/pypi")
    assert [line.split(":")[0] for line in found] == ["a 1.0"]
    assert list(unanswered) == [also]
    about = Message()
    about["License-Expression"] = "MIT"
    packages = {name: SimpleNamespace(version=version, metadata=about) for name, version in versions.items()}
    monkeypatch.setattr("tests.audit.installed", lambda: packages)
    monkeypatch.setattr("tests.audit.read_pins", lambda path: versions)
    assert main(["--index", f"{index}/pypi"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "error: a 1.0: PYSEC-1 CVE-1, fixed in 1.1" in lines
    assert lines[-1] == "vulnerabilities: 1 of 3 packages not answered"
    del versions["a"], packages["a"]
    assert main(["--index", f"{index}/pypi"]) == 0
    assert main(["--index", f"{index}/pypi", "--require-answer"]) == 1


def test_an_index_that_does_not_answer_is_said_and_fails_only_where_it_is_required(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AuditError, match="does not answer"):
        vulnerabilities({"a": "1.0"}, f"{index}/elsewhere")
    main(["--index", f"{index}/elsewhere"])
    assert "vulnerabilities: NOT CHECKED: http" in capsys.readouterr().out
    assert main(["--index", f"{index}/elsewhere", "--require-answer"]) == 1
    assert "error: vulnerabilities were not checked" in capsys.readouterr().out
