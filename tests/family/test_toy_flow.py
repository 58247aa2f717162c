"""The same family through the common command and flow: a Prefect server, a process per stage, a kill in the middle."""

from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kdgat.family import Family
from kdgat.run import OutputDirectory, StageState, run_locally
from kdgat.run.end import EXIT_STOPPED
from tests.support.command_line import run_kdgat, started_kdgat
from tests.support.servers import PrefectServer
from tests.support.toy import LONG
from tests.support.waiting import TIMEOUT_S, wait_until


def test_a_killed_command_given_again_ends_with_the_same_weights_results_and_report(
    toy: Family, tmp_path: Path, prefect_server: PrefectServer
) -> None:
    out, output = tmp_path / "out", OutputDirectory(tmp_path / "out")
    words = ["train", "toy", "--out", str(out), *(word for key in LONG for word in ("-O", key))]

    def has_checkpoint() -> bool:
        records = output.read_index().stages if output.index_path.is_file() else []
        line = next((record for record in records if record.stage == "line" and record.directory), None)
        return line is not None and bool(output.stage_directory(line).newest_checkpoint())

    with started_kdgat(tmp_path / "first.log", *words) as process:
        wait_until(has_checkpoint, "a checkpoint", log=(tmp_path / "first.log").read_text)
        process.kill()
    assert output.read_index().record("line-seed0").state != StageState.FINISHED

    again = run_kdgat(*words, timeout_s=TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert "worst error" in again.stdout
    assert (out / "report.html").is_file()
    run = toy.plan(toy.config.from_preset("quick", {}, LONG))
    undisturbed = run_locally(run, tmp_path / "undisturbed")["line-seed0"]
    resumed = output.stage_directory(output.read_index().record("line-seed0"))
    assert resumed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()

    resumed.weights_path.unlink()  # scratch is purged by age
    mended = run_kdgat(*words, timeout_s=TIMEOUT_S)
    assert mended.returncode == 0, mended.stderr
    assert "its weights.safetensors is gone: made again" in mended.stdout + mended.stderr
    assert resumed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    states = {record.name: record.state for record in output.read_index().stages}
    assert states.pop("line-seed0") == StageState.FINISHED
    assert set(states.values()) == {StageState.CACHED}


def test_a_killed_sweep_given_again_goes_on_and_names_the_best(
    toy: Family, tmp_path: Path, prefect_server: PrefectServer
) -> None:
    out, output = tmp_path / "out", OutputDirectory(tmp_path / "out")
    words = ["sweep", "toy", "--out", str(out), "--grid", "training.learning_rate=1e-6,0.1"]
    words += [word for key in (*LONG, "training.loggers=[tensorboard]") for word in ("-O", key)]

    def has_checkpoint() -> bool:
        records = output.read_index().stages if output.index_path.is_file() else []
        lines = [record for record in records if record.stage == "line" and record.directory]
        return any(output.stage_directory(line).newest_checkpoint() for line in lines)

    with started_kdgat(tmp_path / "first.log", *words) as process:
        wait_until(has_checkpoint, "a checkpoint", log=(tmp_path / "first.log").read_text)
        process.kill()

    again = run_kdgat(*words, timeout_s=TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert "best: trial 001" in again.stdout
    assert output.read_index().record("prepare").state == StageState.CACHED
    trial = OutputDirectory(out / "trials" / "001")
    without = {**trial.read_index().config["training"], "loggers": []}
    config = toy.config.from_data({**trial.read_index().config, "training": without})
    undisturbed = run_locally(toy.plan(config), tmp_path / "undisturbed")
    resumed = trial.stage_directory(trial.read_index().record("line-seed0"))
    assert resumed.weights_path.read_bytes() == undisturbed["line-seed0"].weights_path.read_bytes()
    logged = EventAccumulator(str(resumed.path / "tensorboard"))
    logged.Reload()
    rows = resumed.read_metrics()
    assert [event.step for event in logged.Scalars("train_loss")] == [row["step"] for row in rows]
    assert len(rows) == 12


def test_sigterm_stops_a_command_whose_flow_shows_what_began_before_it(
    toy: Family, tmp_path: Path, prefect_server: PrefectServer
) -> None:
    out, log = tmp_path / "terminated", tmp_path / "first.log"

    def states() -> list[StateType | None]:
        with get_client(sync_client=True) as client:
            return [run.state_type for run in client.read_flow_runs() if run.name.startswith("terminated ")]

    endless = ("data.points=512", "training.max_epochs=100000", "training.patience=null")
    with started_kdgat(log, "train", "toy", "--out", str(out), *(w for key in endless for w in ("-O", key))) as process:
        wait_until(lambda: states() == [StateType.RUNNING], "the flow", log=log.read_text)
        output = OutputDirectory(out)
        wait_until(lambda: output.read_index().record("line-seed0").state is StageState.RUNNING, "the second stage")
        process.terminate()
        assert process.wait(TIMEOUT_S) == EXIT_STOPPED
    assert "stopped by SIGTERM; the same command goes on from there" in log.read_text()
    assert output.read_index().record("line-seed0").state is StageState.PAUSED
    assert states() == [StateType.CANCELLED]
