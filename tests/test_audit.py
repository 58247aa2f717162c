"""The audit names what is unlike the pins, of another licence, bad or vulnerable, and says what it could not check."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.audit import AuditError, known_bad, main, read_pins, unfit_licences, unlike_pins, vulnerabilities

ADVISORY = {"id": "PYSEC-1", "aliases": ["CVE-1"], "summary": "bad", "affected": [
    {"package": {"name": "a", "ecosystem": "PyPI"}, "ranges": [
        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}
    ]}
]}  # fmt: skip


class Service(BaseHTTPRequestHandler):
    """Answers as OSV does: what it is asked for is one package in one version."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_vulnerable = asked["package"]["name"] == "a" and asked["version"] == "1.0"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulns": [ADVISORY]} if is_vulnerable else {}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a folder in which packages a, b and c are installed."""
    for name, version in {"a": "1.0", "b": "2.0", "c": "3.0"}.items():
        about = tmp_path / "site" / f"{name}-{version}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path / "site"


def test_versions_that_are_not_pinned_or_pinned_otherwise_are_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\nTorch==2.13.0  # why\nzope.x==1 ; python_version > '3'\n")
    pins = read_pins(tmp_path / "constraints.txt")
    assert pins == {"torch": "2.13.0", "zope-x": "1"}
    versions = {"torch": "2.13.0+cpu", "zope-x": "2", "new": "3", "pip": "23", "nvidia-nccl-cu13": "2.29.7"}
    found = list(unlike_pins(versions, pins))
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


@pytest.mark.processes
def test_vulnerabilities_are_named_with_the_version_that_has_none(service: str, packages: Path) -> None:
    found = vulnerabilities(["--vulnerability-service=osv", f"--osv-url={service}", f"--path={packages}"])
    assert found == (["a 1.0: PYSEC-1 CVE-1, fixed in 1.1"], {})


@pytest.mark.processes
def test_a_service_that_does_not_answer_is_named_and_fails_only_where_it_is_required(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = ["--vulnerability-service=osv", "--osv-url=http://127.0.0.1:9/", f"--path={packages}"]
    with pytest.raises(AuditError, match=r"127\.0\.0\.1"):
        vulnerabilities(nobody)
    main(nobody)
    assert "vulnerabilities: NOT CHECKED: " in capsys.readouterr().out
    assert main([*nobody, "--require-answer"]) == 1
    assert "error: vulnerabilities were not checked" in capsys.readouterr().out
