"""A wheel works where no checkout is: it brings presets, sites and deployments, and nothing of the tests."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from kdgat.can.evaluation.results import Results
from kdgat.lap.evaluation.results import LapResults
from kdgat.run.results import RunResults

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build one of a copy of what git knows of: a build leaves files behind, and takes those that lie about."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-c", "--null", "-T", "-", "-f", source / "a.tar"], cwd=ROOT, input=listed, check=True)
    subprocess.run(["tar", "-x", "-f", "a.tar"], cwd=source, check=True)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(out))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (path,) = out.glob("kdgat-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of an environment with the wheel, and this one's packages but for the checkout."""
    path = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(path, with_pip=False)
    (packages,) = path.glob("lib/python*/site-packages")
    here = Path(pytest.__file__).parents[1]
    (packages / "others.pth").write_text(f"{here}\n")  # a folder named so is added without the .pth files in it
    python = str(path / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet", str(wheel)]
    subprocess.run([*command, "--force-reinstall"], check=True)
    return path / "bin"


def run(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Give a command far from the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KDGAT_", "PYTHON"))}
    return subprocess.run(
        [str(installed / words[0]), *words[1:]],
        cwd=installed.parent.parent,
        env={**environment, "HOME": str(installed.parent.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_holds_what_commands_read_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "kdgat", "flows", f"{wheel.name.split('-py3')[0]}.dist-info", f"{wheel.name.split('-py3')[0]}.data",
    }  # fmt: skip
    shared = {name.partition("/share/kdgat/")[2] for name in names if "/share/kdgat/" in name}
    sites = {f"sites/{name}.yaml" for name in ("example", "local", "osc-ascend", "osc-pitzer")}
    assert shared == {"prefect.yaml", *sites}
    for name in ("kdgat/lap/presets/quick.yaml", "kdgat/py.typed"):
        assert name in names


@pytest.mark.parametrize(("family", "model"), [("can", Results), ("lap", LapResults)])
def test_it_brings_the_schemas_of_results(wheel: Path, family: str, model: type[RunResults]) -> None:
    schema = zipfile.ZipFile(wheel).read(f"kdgat/{family}/evaluation/results.schema.json")
    assert json.loads(schema) == model.schema_of_file()


def test_its_metadata_are_what_an_index_shows(wheel: Path) -> None:
    """Readme, licence, authors and classifiers; no URL, because the project has no public address yet."""
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    assert (metadata["Name"], metadata["License-Expression"]) == ("kdgat", "Apache-2.0")
    assert metadata["Author"] or metadata["Author-email"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# kdgat")
    assert metadata.get_all("Classifier")
    assert metadata.get_all("Project-URL") is None


def test_commands_work_outside_a_checkout(installed: Path) -> None:
    where = run(installed, "python", "-c", "import kdgat, flows; print(kdgat.__file__, flows.__file__)")
    assert where.stdout.count(str(installed.parent)) == 2
    sites = run(installed, "kdgat", "site", "list")
    assert [line.split()[0] for line in sites.stdout.splitlines()] == ["site", "local", "osc-ascend", "osc-pitzer"], (
        sites.stderr
    )
    plan = run(installed, "kdgat", "plan", "lap", "--preset", "quick")
    assert "mid_2048" in plan.stdout, plan.stderr


def test_deployments_are_found_and_missing_ones_refused_before_a_server_is_started(installed: Path) -> None:
    find = "from flows.deployment.installation import Installation, find_prefect_file as f"
    found = run(installed, "python", "-c", f"{find}; print(f(Installation.find().checkout))")
    path = installed.parent / "share" / "kdgat" / "prefect.yaml"
    assert found.stdout.strip() == str(path), found.stderr
    path.rename(path.with_suffix(".away"))
    try:
        refused = run(installed, "python", "-m", "flows.deployment", "up")
    finally:
        path.with_suffix(".away").rename(path)
    assert refused.returncode == 1
    assert f"{path} are missing: install kdgat into a virtual environment" in refused.stderr
    assert not (installed.parent.parent / ".kdgat" / "server.log").exists()
