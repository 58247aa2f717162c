"""A file of one's own as a deployment on a real Slurm, its stages in the image: cut by the walltime, and by night."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.deployment.installation import PREFECT_FILE
from kdgat.cluster import AttemptLedger, EndKind
from kdgat.experiment import example
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.family import FAMILY
from kdgat.registry import Registry
from kdgat.run import OutputDirectory, run_locally
from kdgat.stage import RunDirectory
from tests.container.built import source_image
from tests.deployments.installed import ROOT, Installed, as_parameters
from tests.slurm.cluster_run import write_site
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import run_kdgat

pytestmark = pytest.mark.nightly  # only an image of this very source fits: minutes to build, at each commit

PREFIX = "/opt/kdgat"
STAGE = "small"
TIMEOUT_S = 1800.0
OVERRIDES = ["training.max_epochs=800", "training.patience=null", "training.checkpoint_margin_s=10"]
SHORT = ["training.max_epochs=2", "model.hidden=8"]


class Person:
    """Somebody's file with a module beside it and a folder of data, and the deployments made of it."""

    def __init__(self, path: Path, installed: Installed) -> None:
        self.installed = installed
        self.source, self.root, self.prefect_file = path / "mine" / "net.py", path / "graphs", path / PREFECT_FILE
        for folder in (self.source.parent, self.root, self.prefect_file.parent):
            folder.mkdir()
        text = Path(example.__file__).read_text()
        text = text.replace("import torch\n", "from pathlib import Path\n\nimport torch\nfrom noise import noisy\n", 1)
        text = text.replace("def data(graphs", "def data(root: Path, graphs").replace(
            "    return found[", "    noisy(found[: graphs * 8 // 10], root)\n    return found["
        )
        self.source.write_text(text)
        self.source.with_name("noise.py").write_text(
            "import torch\n\n\ndef noisy(found, root):\n"
            '    level = float((root / "noise.txt").read_text())\n'
            "    generator = torch.Generator().manual_seed(1)\n"
            "    for graph in found:\n"
            "        graph.y = graph.y + level * torch.randn(1, generator=generator)\n"
        )
        self.set_noise(0.0)
        for name in (PREFECT_FILE, "Makefile"):
            shutil.copy(ROOT / name, path / name)

    def set_noise(self, level: float) -> None:
        """Change the data."""
        (self.root / "noise.txt").write_text(str(level))

    def deploy(self) -> None:
        """Give the commands of docs/experiment.md."""
        words = [
            "make",
            "-C",
            str(self.prefect_file.parents[1]),
            "deployment",
            f"FILE={self.source}",
            f"ROOT={self.root}",
        ]
        subprocess.run(words, check=True, capture_output=True)
        environment = {**self.installed.environment, **self.installed.here.environment()}
        words = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(self.prefect_file)]
        done = subprocess.run([*words, "--all"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.installed.command("update").returncode == 0

    def run(self, deployment: str, *overrides: str) -> str:
        """Give `prefect deployment run --watch`, and return what it printed."""
        given = as_parameters({"overrides": list(overrides), "command_line": {"walltime": "00:01:00"}})
        done = self.installed.prefect("deployment", "run", deployment, "--watch", *given, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr + self.installed.log()
        return done.stdout


@pytest.fixture
def site(tmp_path: Path, slurm: PrivateSlurm) -> Path:
    return write_site(tmp_path, source_image())


@pytest.fixture
def person(tmp_path: Path, site: Path, slurm: PrivateSlurm) -> Iterator[Person]:
    installed = Installed(tmp_path / "installation", KDGAT_SITE=str(site))
    try:
        answer = installed.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        person = Person(tmp_path, installed)
        person.deploy()
        yield person
    finally:
        installed.command("down")
        assert installed.processes() == {}
        assert slurm.jobs() == []


def attempts_in_image(directory: Path) -> list[dict[str, Any]]:
    """Return where the attempts at a stage ran; all of them in the image."""
    found = json.loads(RunDirectory(directory).provenance_path.read_bytes())["attempts"]
    assert {attempt["prefix"] for attempt in found} == {PREFIX}
    return list(found)


def test_a_deployed_file_is_cut_by_the_walltime_in_the_image_and_ends_with_the_weights_of_an_undisturbed_run(
    person: Person, site: Path, tmp_path: Path
) -> None:
    person.run("experiment/net", *OVERRIDES)
    out = OutputDirectory(person.installed.here.outputs / "experiment" / "net")
    (directory,) = out.stages_path.glob(f"{STAGE}-*")
    ends = [record.end for record in AttemptLedger(RunDirectory(directory)).records]
    assert len(ends) >= 3
    assert ends == [*[EndKind.PAUSED.value] * (len(ends) - 1), EndKind.FINISHED.value]
    assert len(attempts_in_image(directory)) == len(ends)
    assert out.report_path.is_file()

    given = {"source": str(person.source), "root": str(person.root)}
    here = run_locally(FAMILY.plan(ExperimentConfig.from_preset("quick", given, OVERRIDES)), tmp_path / "here")
    for name, local in here.items():
        if name.startswith(("small", "large")):
            there = out.stage_directory(out.read_index().record(name))
            assert there.weights_path.read_bytes() == local.weights_path.read_bytes()

    person.set_noise(3.0)  # what was trained is measured on other data, in the image, too
    words = ("--run", str(out.path), "--root", str(person.root), "-O", "data.largest=12", "--site", str(site))
    measured = run_kdgat("evaluate", "experiment", *words, timeout_s=TIMEOUT_S)
    assert measured.returncode == 0, measured.stderr
    assert "test.error" in measured.stdout
    for directory in out.evaluations_path.iterdir():
        attempts_in_image(directory)


def test_of_two_nights_in_the_image_the_better_model_is_in_service_and_a_third_has_nothing_to_do(
    person: Person,
) -> None:
    registry = Registry(person.installed.here.registry)
    person.set_noise(20.0)
    assert "no model was in service before" in person.run("nightly/net", *SHORT)
    first = registry.in_service("experiment", "net")
    person.set_noise(0.0)
    told = person.run("nightly/net", *SHORT)
    second = registry.in_service("experiment", "net")
    assert first is not None
    assert second is not None
    assert f"files changed since {first.id}; {second.id} went into service: test.error is " in told
    assert f"nothing new; in service: {second.id}" in person.run("nightly/net", *SHORT)
    nights = person.installed.here.outputs / "nightly-experiment" / "net"
    compared = list(nights.glob("**/comparisons/*"))
    assert compared
    for directory in compared:
        attempts_in_image(directory)
