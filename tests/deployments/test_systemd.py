import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.deployment.installation import POOL, Installation
from flows.deployment.runs import LEAVE_TIMEOUT_S, SAVE_TIMEOUT_S

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deployments" / "systemd").glob("*.service"))


def read(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def commands(unit: configparser.ConfigParser) -> list[list[str]]:
    names = [name for name in unit["Service"] if name.startswith("Exec")]
    return [shlex.split(unit["Service"][name]) for name in names]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
@pytest.mark.processes
def test_a_unit_starts_what_make_deploy_starts(path: Path, tmp_path: Path) -> None:
    unit = read(path)
    assert unit["Service"]["EnvironmentFile"] == "%h/.kdgat/installation.env"
    known = Installation.find({"KDGAT_HOME": str(tmp_path)}).environment()
    for words in commands(unit):
        assert words[:3] == ["%h/kdgat/.venv/bin/python", "-P", "-m"]
        assert set(re.findall(r"\$\{(\w+)\}", " ".join(words))) <= set(known)
        # Each command exists and knows its options.
        before_options = [word for word in words[1:] if word != "--no-prompt"]
        verbs = [word for word in before_options[:5] if not word.startswith("--")]
        answer = subprocess.run([sys.executable, *verbs, "--help"], capture_output=True, text=True, cwd=ROOT)
        assert answer.returncode == 0, answer.stderr
        for option in (word for word in words if word.startswith("--") and word != "--no-prompt"):
            assert option in answer.stdout


def test_the_worker_takes_runs_of_the_pool_and_waits_for_the_server() -> None:
    worker = read(ROOT / "deployments" / "systemd" / "kdgat-worker.service")
    assert worker["Unit"]["After"] == "kdgat-server.service"
    (start,) = [words for words in commands(worker) if "worker" in words]
    assert start[start.index("--pool") + 1] == POOL


def test_stopping_the_worker_lets_its_runs_save_before_anything_gets_a_signal() -> None:
    service = read(ROOT / "deployments" / "systemd" / "kdgat-worker.service")["Service"]
    assert service["ExecStop"].endswith("-m flows.deployment stop-runs")
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > SAVE_TIMEOUT_S + LEAVE_TIMEOUT_S


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    (tmp_path / "kdgat" / ".venv").mkdir(parents=True)
    (tmp_path / "kdgat" / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    answer = subprocess.run(
        ["systemd-analyze", "--user", "verify", *map(str, UNITS)], capture_output=True, text=True, env=environment
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
