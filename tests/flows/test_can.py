"""The whole flow on tiny synthetic traffic, as a person runs it, and with what can happen to it on the way."""

import json
import os
import re
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from kdgat.can.evaluation.results import Results
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster.child import checkpoint_marker
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.stage import Paused
from tests.support.command_line import kdgat, processes_of, run_kdgat, started_kdgat
from tests.support.servers import PrefectServer
from tests.support.small_runs import ALL_STAGES, as_options
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.prefect  # `kdgat train` starts a server where none is configured


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, "synthetic", "small")
    return root


def words(data_root: Path, out: Path, *overrides: str) -> list[str]:
    paths = ["--data-root", str(data_root), "--out", str(out)]
    return ["train", "can", "--dataset", "synthetic", *paths, *as_options(*ALL_STAGES, *overrides)]


def record_of(out: Path, name: str) -> StageRecord | None:
    output = OutputDirectory(out)
    return output.read_index().record(name) if output.index_path.is_file() else None


def has_checkpoint(out: Path, name: str) -> bool:
    record = record_of(out, name)
    if record is None or record.directory is None:
        return False
    return bool(checkpoint_marker(OutputDirectory(out).stage_directory(record)))


def test_recordings_become_an_evaluated_detector_and_a_second_run_does_nothing_twice(
    data_root: Path, tmp_path: Path, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run starts a server of its own; all kinds of stages are in tests/slurm/test_whole_flow.py."""
    out = tmp_path / "out"
    command = words(data_root, out, "stages=[autoencoder, normal, evaluation]")
    with monkeypatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
            patch.delenv(name)
        first = run_kdgat(*command, timeout_s=TIMEOUT_S)
    assert first.returncode == 0, first.stderr
    assert "in Prefect" not in first.stderr
    results = Results.read(out / "results.json")
    assert set(results.f1) == {path.name.partition("__")[0] for path in (data_root / "synthetic").glob("test_*")}
    assert results.seeds == [0]
    assert (out / "report.html").is_file()
    assert not [path for path in (out, *out.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]  # nobody else's
    for text in (*results.f1, str(out / "report.html")):
        assert text in first.stdout

    second = run_kdgat(*command, timeout_s=TIMEOUT_S)
    assert second.returncode == 0, second.stderr
    page = prefect_server.url.removesuffix("/api")
    assert re.search(rf"^in Prefect  {re.escape(page)}/runs/flow-run/[-0-9a-f]{{36}}$", second.stderr, re.MULTILINE)
    assert {record.state for record in OutputDirectory(out).read_index().stages} == {StageState.CACHED}
    assert Results.read(out / "results.json").f1 == results.f1

    path = tmp_path / "new" / "elsewhere.json"  # a folder that is missing is made
    kdgat("evaluate", "can", "--run", out, "--data-root", data_root, "--json", path, status=0)
    assert json.loads(path.read_text())["f1"] == results.f1

    database = sqlite3.connect(out / "prefect" / "prefect.db")
    assert {row[0] for row in database.execute("select state_type from flow_run")} == {"COMPLETED"}
    task_runs = {row[0] for row in database.execute("select name from task_run")}
    assert {"prepare", "normal-large-seed0", "autoencoder-large-seed0", "results"} <= task_runs
    inputs = "".join(row[0] for row in database.execute("select task_inputs from task_run where name = 'results'"))
    evaluations = database.execute("select id from task_run where name = 'evaluation-large-seed0'").fetchall()
    assert any(row[0] in inputs for row in evaluations), "in the graph an arrow leads from the evaluation to results"
    artifacts = {row[0] for row in database.execute("select key from artifact")}
    keys = ("scores", "models", "autoencoder-and-gat", "report", "attempts", "progress")
    assert {f"{key}-synthetic" for key in keys} <= artifacts
    assert all("synthetic" in key for key in artifacts)  # what is of one dataset is not mixed with another's
    newest = "select data from artifact where key = 'report-synthetic' order by created desc limit 1"
    (data,) = database.execute(newest).fetchone()
    report = json.loads(data)
    for text in (*results.f1, "data:image/svg+xml;base64,", "scp ", f"report {out} --serve"):
        assert text in report
    names = {row[0] for row in database.execute("select name from flow_run")}
    assert names == {"synthetic out quick"}
    database.close()


@pytest.mark.nightly
def test_a_killed_flow_leaves_no_process_and_goes_on_where_it_was(data_root: Path, tmp_path: Path) -> None:
    out, name = tmp_path / "out", "autoencoder-large-seed0"
    command = words(data_root, out, "stages=[autoencoder]", "training.max_epochs=60", "training.patience=null")
    command += ["-O", "training.checkpoint_every_steps=5"]
    with started_kdgat(tmp_path / "kdgat.log", *command) as flow:
        wait_until(lambda: has_checkpoint(out, name), "a checkpoint", log=(tmp_path / "kdgat.log").read_text)
        os.kill(flow.pid, signal.SIGKILL)
        flow.wait()
    wait_until(lambda: not processes_of(out), "the end of the flow's processes")
    record = record_of(out, name)
    assert record is not None
    directory = OutputDirectory(out).stage_directory(record)
    assert isinstance(directory.read_outcome(), Paused)

    resumed = run_kdgat(*command, timeout_s=TIMEOUT_S)
    assert resumed.returncode == 0, resumed.stderr
    index = OutputDirectory(out).read_index()
    assert index.record("prepare").state == StageState.CACHED
    assert index.record(name).state == StageState.FINISHED
    assert index.record(name).directory == record.directory
    epochs = [row["epoch"] for row in directory.read_metrics()]
    assert epochs == sorted(set(epochs))  # none was trained twice, none was left out
    assert len(epochs) == 60
    database = sqlite3.connect(out / "prefect" / "prefect.db")
    states = sorted(row[0] for row in database.execute("select state_name from flow_run"))
    database.close()
    assert states == ["Completed", "FlowProcessLost"]


def test_ctrl_c_stops_with_a_checkpoint_and_a_second_flow_is_refused_meanwhile(
    data_root: Path, tmp_path: Path, prefect_server: object
) -> None:
    out, name, log = tmp_path / "out", "normal-large-seed0", tmp_path / "kdgat.log"
    command = words(data_root, out, "stages=[normal]", "training.max_epochs=100000", "training.patience=null")
    command += ["-O", "training.checkpoint_every_steps=1"]
    with started_kdgat(log, *command) as flow:
        wait_until(lambda: has_checkpoint(out, name), "a checkpoint", log=log.read_text)
        assert str(flow.pid) in kdgat(*command, status=1).stderr.splitlines()[-1]
        os.killpg(flow.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
        assert flow.wait(TIMEOUT_S) == 130
    wait_until(lambda: not processes_of(out), "the end of the flow's processes")
    record = record_of(out, name)
    assert record is not None
    assert record.state == StageState.PAUSED
    assert "goes on" in log.read_text()


def test_a_recording_that_cannot_be_read_ends_the_flow_with_one_sentence(
    data_root: Path, tmp_path: Path, prefect_server: object
) -> None:
    root = tmp_path / "data"
    (root / "synthetic").mkdir(parents=True)
    for path in (data_root / "synthetic").iterdir():
        (root / "synthetic" / path.name).symlink_to(path)
    broken = root / "synthetic" / "train_02_with_attacks__broken.parquet"
    broken.write_bytes(b"no parquet")
    done = run_kdgat(*words(root, tmp_path / "out"), timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert broken.name in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
