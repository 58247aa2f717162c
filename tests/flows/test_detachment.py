"""What `--detach` refuses before anything is submitted, and what it writes, beside commands of Slurm that say so."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.context import refresh_global_settings_context

from flows.detachment import detach
from kdgat.base import UserError
from kdgat.cluster import Site
from kdgat.cluster.script import watcher_name
from kdgat.cluster.slurm import SubmissionError
from kdgat.run import OutputDirectory, RunError
from tests.support.commands import write_commands

SITE = Site(name="here", scheduler="slurm", interface="lo")
WORDS = ("train", "can", "--out", "x", "--detach", "--seeds", "0", "1")


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    return OutputDirectory(tmp_path / "out")


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the server that the tests of this process may share: no node would reach it."""
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    refresh_global_settings_context()
    yield
    monkeypatch.undo()
    refresh_global_settings_context()


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty queue, and an sbatch that takes everything."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", write_commands(folder, squeue="true", sbatch="echo 12"))
    return folder


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    """Return what sets variables for one test, and lets Prefect read them."""
    with pytest.MonkeyPatch.context() as patch:

        def set_variables(**variables: str) -> None:
            for name, value in variables.items():
                patch.setenv(name, value)
            refresh_global_settings_context()

        yield set_variables
    refresh_global_settings_context()


def test_the_job_gives_the_same_command_without_the_option(output: OutputDirectory) -> None:
    printed = detach(output, SITE, WORDS)
    *_, last = (output.slurm_path / "watcher.sh").read_text().strip().splitlines()
    assert last.endswith("-m kdgat.cli.main train can --out x --seeds 0 1")
    assert printed.startswith("job 12 watches the run")
    assert str(output.slurm_path / "watcher-12.out") in printed


def test_a_site_without_jobs_is_refused(output: OutputDirectory) -> None:
    with pytest.raises(UserError, match="--site local there are no jobs"):
        detach(output, Site(name="local"), WORDS)


def test_a_site_whose_jobs_end_with_their_command_is_refused(output: OutputDirectory) -> None:
    with pytest.raises(UserError, match="on_lost_flow: stop of site here"):
        detach(output, SITE.model_copy(update={"on_lost_flow": "stop"}), WORDS)


def test_a_run_that_a_job_watches_or_a_command_trains_is_refused(output: OutputDirectory, commands: Path) -> None:
    name = watcher_name(output.path)
    write_commands(commands, squeue=f"echo '7|RUNNING|n1|None|{name}'")
    with pytest.raises(UserError, match=f"job 7 watches this run.*scancel --name={name}"):
        detach(output, SITE, WORDS)
    write_commands(commands, squeue="exit 1")
    with pytest.raises(UserError, match="squeue does not say"):
        detach(output, SITE, WORDS)
    write_commands(commands, squeue="true")
    with output.lock(), pytest.raises(RunError, match="another --out"):
        detach(output, SITE, WORDS)


def test_a_refused_job_is_told_by_slurms_words(output: OutputDirectory, commands: Path) -> None:
    write_commands(commands, sbatch="echo 'sbatch: error: invalid partition specified: cpu' >&2; exit 1")
    with pytest.raises(SubmissionError, match="invalid partition specified: cpu"):
        detach(output, SITE, WORDS)


def test_a_prefect_api_that_a_node_does_not_reach_or_not_open_is_refused(
    output: OutputDirectory, configure: Callable[..., None]
) -> None:
    configure(PREFECT_API_URL="http://127.0.0.1:4200/api")
    with pytest.raises(UserError, match=r"a node does not reach PREFECT_API_URL=http://127\.0\.0\.1:4200/api"):
        detach(output, SITE, WORDS)
    assert detach(output, SITE.model_copy(update={"interface": None}), WORDS)  # all on one machine
    configure(PREFECT_API_URL="http://prefect.example.org/api", PREFECT_API_AUTH_STRING="someone:secret")
    with pytest.raises(UserError, match="prefect config set PREFECT_API_AUTH_STRING") as refused:
        detach(output, SITE, WORDS)
    assert "someone:secret" not in str(refused.value)
    assert not any("someone:secret" in path.read_text() for path in output.slurm_path.glob("*"))
