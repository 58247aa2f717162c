import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdgat.can.capabilities import CUDA, CUDF, find_capabilities, find_cuda, find_package
from kdgat.cli import doctor
from kdgat.cli.doctor import check_gpu, check_packages, check_scheduler, check_server, examine
from kdgat.cluster.filesystem import check_filesystem
from tests.support.command_line import Answer


@pytest.fixture
def told() -> list[str | None]:
    """Return a list of the strings by which the servers below were asked to let somebody in."""
    return []


@pytest.fixture
def server(told: list[str | None]) -> Iterator[Callable[[int, str], str]]:
    """Answer the question for the version with a status and a text, at the address that is returned."""
    servers = []

    def serve(status: int, text: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told.append(self.headers["Authorization"])
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(text).encode())

            def log_message(self, *_: object) -> None:
                pass

        made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        servers.append(made)
        return f"http://127.0.0.1:{made.server_port}/api"

    yield serve
    for made in servers:
        made.shutdown()
        made.server_close()


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_gpu_and_all_of_rapids_are_shown_with_the_reason_why_they_cannot_be_used() -> None:
    checks = {check.name: check for check in check_gpu()}
    found = {one.name: one for one in find_capabilities()}
    cuda = found.pop(CUDA)
    assert cuda.detail in checks["GPU"].found
    assert (checks["GPU"].state == "good") == cuda.usable
    for one in found.values():
        check = checks.get(f"RAPIDS: {one.name}", checks.get("RAPIDS"))
        assert check is not None
        assert one.name in check.name + check.found
        assert one.detail in check.found


def test_a_part_of_rapids_that_is_installed_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{CUDF}.py").write_text("raise RuntimeError('libcudart.so.13 cannot be opened')")
    monkeypatch.syspath_prepend(tmp_path)
    find_package.cache_clear()
    try:
        (check,) = [check for check in check_gpu() if check.name == f"RAPIDS: {CUDF}"]
    finally:
        find_package.cache_clear()
    reason = "fails: RuntimeError: libcudart.so.13" if find_cuda().usable else f"CUDA device: {find_cuda().detail}"
    assert check.state == "missing"
    assert reason in check.found


def test_every_part_of_the_installation_these_tests_run_in_is_good(tmp_path: Path) -> None:
    checks = {check.name: check for check in check_packages()}
    checks.pop("packages: loggers")  # which `make loggers` installs
    assert {name: check.found for name, check in checks.items() if check.state != "good"} == {}
    assert {"packages: training", "packages: flows", "packages: trees"} <= checks.keys()
    assert "packages: dev" not in checks


def test_it_prints_a_table_and_its_json_has_the_same_lines(kdgat: Callable[..., Answer], tmp_path: Path) -> None:
    table = kdgat("doctor", "--out", tmp_path)
    listed = json.loads(kdgat("doctor", "--out", tmp_path, "--json").stdout)
    assert table.status == int(any(check["state"] == "wrong" for check in listed))
    assert [check["name"] for check in listed if check["name"] not in table.stdout] == []
    assert list(tmp_path.iterdir()) == []


def test_gpus_without_a_cluster_are_refused_instead_of_ignored(kdgat: Callable[..., Answer], tmp_path: Path) -> None:
    answer = kdgat("doctor", "--out", tmp_path, "--gpus", 1)
    assert answer.status == 1
    assert "--gpus 1: they are of a job that tries a node; name its cluster (--site NAME)" in answer.stderr


@pytest.mark.parametrize("option", [("--site", "local"), ("--json",), ("--out", "elsewhere")])
def test_options_before_a_check_of_its_own_are_refused_instead_of_ignored(
    kdgat: Callable[..., Answer], option: tuple[str, ...]
) -> None:
    answer = kdgat("doctor", *option, "gpu", status=2)
    assert option[0] in answer.stderr
    assert "give it behind gpu" in answer.stderr


def test_another_version_than_the_pinned_one_is_wrong_and_an_absent_part_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions, found = {"prefect": "3.0.0", "plotly": None}, doctor.package_version
    monkeypatch.setattr(doctor, "package_version", lambda name: versions[name] if name in versions else found(name))
    checks = {check.name: check for check in check_packages()}
    assert checks["packages: flows"].state == "wrong"
    assert "prefect 3.0.0 is not ==3.8.8" in checks["packages: flows"].found
    assert checks["packages: report"].state == "missing"
    assert "kdgat[report]" in checks["packages: report"].fix


def test_a_controller_that_does_not_answer_is_wrong_and_no_slurm_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_scheduler().state == "missing"
    program(tmp_path, "sbatch", "echo slurm 24.11.5")
    program(tmp_path, "scontrol", "echo 'Slurmctld(primary) at login is UP'")
    assert check_scheduler() == ("Slurm", "good", "slurm 24.11.5", "")
    program(tmp_path, "scontrol", "echo 'Slurmctld(primary) at login is DOWN'")
    assert check_scheduler("osc-pitzer").state == "wrong"
    assert check_scheduler().state == "missing", "runs on this machine need none"


def test_a_shell_that_leads_to_no_slurm_is_told_so_and_not_that_a_controller_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "sbatch", "echo slurm 24.11.5")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    check = check_scheduler()
    assert check.found == f"SLURM_CONF={str(tmp_path / 'slurm.conf')!r} is no file"
    assert "export SLURM_CONF=" in check.fix


def test_a_server_is_good_wrong_or_another_version(
    server: Callable[[int, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_server().found.startswith("none configured")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("PREFECT_API_URL", server(200, doctor.package_version("prefect") or ""))
    assert check_server().state == "good"
    monkeypatch.setenv("PREFECT_API_URL", server(200, "3.0.0"))
    assert "is Prefect 3.0.0, this is" in check_server().found
    monkeypatch.setenv("PREFECT_API_URL", server(401, "who?"))
    assert "installation.env" in check_server().fix
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert check_server().state == "wrong"


def test_whoever_else_listens_at_the_address_of_the_server_is_not_told_its_string(
    server: Callable[[int, str], str], told: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server(200, doctor.package_version("prefect") or "")
    monkeypatch.setenv("PREFECT_API_URL", url)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "us:secret")
    assert check_server().state == "good"
    assert told == ["Basic dXM6c2VjcmV0"]
    monkeypatch.setattr(os, "getuid", lambda: 65_534)  # for whom this process is somebody else
    assert "no process of yours listens there" in check_server().found
    monkeypatch.setenv("PREFECT_API_URL", url.replace("127.0.0.1", "localhost"))
    assert check_server().state == "wrong"
    assert len(told) == 1


def test_a_folder_that_takes_no_file_is_wrong_and_one_that_is_yet_to_be_made_is_tried_above(tmp_path: Path) -> None:
    assert {check.state for check in check_filesystem(tmp_path / "runs" / "first")} == {"good"}
    [refused] = check_filesystem(Path("/proc/self"))
    assert refused.state == "wrong"
    assert "--out" in refused.fix


def test_an_unknown_site_and_an_image_that_is_none_are_wrong(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_text("no image")
    checks = {check.name: check for check in examine("osc-pitzr", tmp_path, image)}
    assert "did you mean 'osc-pitzer'" in checks["site osc-pitzr"].found
    assert checks["nodes"].found == "not tried: no job was submitted"
    assert "wrong" in (checks.get("image", checks["Apptainer"]).state)
