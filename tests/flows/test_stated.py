"""What a person has set for other flows changes none of kdgat's: settings of Prefect, the folder where one stands."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.cluster.child import describe_limit

pytestmark = pytest.mark.processes

OF_A_PERSON = {
    "PREFECT_TASKS_DEFAULT_RETRIES": "2",
    "PREFECT_FLOWS_DEFAULT_RETRIES": "2",
    "PREFECT_TASKS_DEFAULT_PERSIST_RESULT": "true",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
    "PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS": "1",
}
PROGRAM = """
import importlib, json, pathlib, pkgutil, flows
from prefect import Flow, Task
found = {}
for module in pkgutil.walk_packages(flows.__path__, "flows."):
    if not module.name.endswith("__main__"):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Flow | Task):
                runner = getattr(value, "task_runner", None)
                found[name] = value.retries, value.persist_result, getattr(runner, "_max_workers", None) == 1
print(json.dumps(found))
"""


def test_every_flow_and_task_states_its_retries_its_results_and_its_threads() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **OF_A_PERSON})
    found = json.loads(done.stdout)
    assert {"train", "sweep", "nightly", "run_stage", "run_attempt", "part"} <= found.keys()
    one_by_one = ("nightly", "nightly_experiment", "evaluate_can")
    assert {name: value for name, value in found.items() if value[:2] != [0, False]} == {}
    assert {name for name, value in found.items() if value[2]} <= set(one_by_one)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flows/__init__.py", "raise SystemExit('code of the working folder')"),
        ("kdgat/__init__.py", "raise SystemExit('code of the working folder')"),
        ("queue.py", "raise SystemExit('code of the working folder')"),
    ],
)
def test_modules_of_the_folder_where_one_stands_are_not_run(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    for module in ("kdgat.cluster.job", "flows.watcher"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, "--help"], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_every_process_is_started_without_the_folder_where_one_stands() -> None:
    root = Path(__file__).parents[2]
    sources = [path for folder in ("kdgat", "flows") for path in (root / folder).rglob("*.py")]
    lines = [line.strip() for path in sources for line in path.read_text().splitlines()]
    started = [line for line in lines if 'sys.executable, "-' in line and '"pip"' not in line]
    assert len(started) >= 7
    assert [line for line in started if 'sys.executable, "-P", "' not in line] == []


def test_another_package_called_flows_is_refused_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").write_text("print('RUN')")
    done = subprocess.run(
        [sys.executable, "-m", "kdgat.cli.main", "train", "trees", "--out", str(tmp_path / "out"), "--quiet"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "`flows` that Python finds" in done.stderr
    assert "is not kdgat's" in done.stderr


def test_settings_that_cannot_be_read_are_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kdgat.cli.main", "train", "trees", "--out", str(tmp_path / "out"), "--quiet"],
        env={**os.environ, "PREFECT_TASKS_DEFAULT_RETRIES": "many"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "prefect cannot read its settings" in done.stderr
    assert "Traceback" not in done.stderr


IMPORT_OF_JOBS = """
from kdgat.cli.main import _describe_settings
try:
    import flows.slurm_attempts
except Exception as error:
    print(_describe_settings(error))
"""


def test_those_of_dask_are_one_where_there_are_jobs(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [")
    command = [sys.executable, "-P", "-c", IMPORT_OF_JOBS]
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dask cannot read its settings")


def test_a_signal_of_a_limit_names_the_limit() -> None:
    assert describe_limit(signal.SIGXCPU) == " (SIGXCPU: raise `ulimit -t` of the shell, or of jobs)"
    assert "ulimit -f" in describe_limit(signal.SIGXFSZ)
    assert describe_limit(signal.SIGKILL) == ""
