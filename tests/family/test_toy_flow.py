"""The same family through the common command and flow: a Prefect server, a process per stage, a kill in the middle."""

from pathlib import Path

from kdgat.family.protocol import Family
from kdgat.run.directory import OutputDirectory, StageState
from kdgat.run.local import run_locally
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
