"""The job scripts that dask-jobqueue writes from our arguments, compared with files that people have looked at.

After a change that is meant: `KDGAT_UPDATE_GOLDEN=1 python -m pytest tests/cluster/test_script.py`, then look at
the difference.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import dask.config
import pytest
from dask_jobqueue.slurm import SLURMJob
from prefect.settings import Settings
from prefect.settings.legacy import _get_settings_fields

from kdgat.base import UserError
from kdgat.cluster import Resources, Site, load_site
from kdgat.cluster.job import parse_options
from kdgat.cluster.report import JobFiles
from kdgat.cluster.scheduler import JobStatus
from kdgat.cluster.script import (
    SECRETS,
    cluster_arguments,
    is_job_of,
    job_name,
    job_names,
    pool_arguments,
    scheduler_options,
    watcher_names,
    watcher_script,
)
from kdgat.cluster.site import Limits
from kdgat.container.binds import Bind
from kdgat.stage import RunDirectory

GOLDEN = Path(__file__).parent / "golden"
DIRECTORY = Path("/scratch/someone/run/stages/normal-large-seed0-0123abcd")
LOGS = Path("/scratch/someone/run/slurm")
THIS_PYTHON = sys.executable
PYTHON = "/home/someone/kdgat/.venv/bin/python"

SMALL = Resources(walltime_s=600, memory_mib=1500)
LARGE = Resources(walltime_s=57_600, memory_mib=131_072, cores=8, gpus=1, gpu_type="v100")
WITH_IMAGE = Site(
    name="with-image",
    scheduler="slurm",
    account="PAS0000",
    qos="long",
    partition="cpu",
    gpu_partition="gpu",
    gpu_request="gpus-per-node",
    image="/apps/kdgat.sif",
    node_local="/local/",
    modules=("apptainer/1.4", "cuda/12.4.1"),
    prologue=("export PYTHONNOUSERSITE=1",),
    directives=("--constraint=48core", "--mail-type=FAIL"),
    interface="ib0",
)

WITHOUT_IMAGE = Site(
    name="without-image",
    scheduler="slurm",
    account="PAS0000",
    node_local="$TMPDIR",
    staging="node_local",
    modules=("gcc/12.3.0",),
    prologue=("export PYTHONNOUSERSITE=1", 'export MPLCONFIGDIR="$TMPDIR"'),
    interface="ib0",
)

SHORT = Site(
    name="short",
    scheduler="slurm",
    limits=Limits(walltime="00:03:00", memory="2G"),
    directives=("--exclude=n1", "--exclude=n2"),
)
BINDS = (Bind(DIRECTORY, DIRECTORY, is_writable=True), Bind(Path("/data/can"), Path("/data/can")))


def arguments(site: Site, resources: Resources, **more: Any) -> dict[str, Any]:
    return cluster_arguments(site, resources, DIRECTORY, LOGS, **more)


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", PYTHON)
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # root may need one more line


def script(site: Site, resources: Resources, **more: Any) -> str:
    given = arguments(site, resources, **more)
    return str(SLURMJob(scheduler="tls://127.0.0.1:41000", name="0", **given).job_script())


def compare(text: str, path: Path) -> None:
    """See that a script is the one that was looked at, and that the shell can read it."""
    if os.environ.get("KDGAT_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=True).stderr == ""


@pytest.mark.parametrize(
    ("golden", "site", "resources", "more"),
    [
        ("job_script_pitzer.txt", "osc-pitzer", LARGE, {}),
        ("job_script_modules.txt", WITHOUT_IMAGE, LARGE, {}),
        ("job_script_slurm_test.txt", "slurm-test", SMALL, {"excluded_nodes": ["n3", "n1"]}),
        ("job_script_image_gpu.txt", WITH_IMAGE, LARGE, {"binds": BINDS}),
        ("job_script_image_cpu.txt", WITH_IMAGE, SMALL, {}),
    ],
)
def test_a_job_script_is_the_one_that_was_looked_at(
    golden: str, site: str | Site, resources: Resources, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDGAT_ACCOUNT", "PAS0000" if site == "osc-pitzer" else "")
    text = script(load_site(site) if isinstance(site, str) else site, resources, **more)
    compare(text, GOLDEN / golden)
    assert len([line for line in text.splitlines() if line.startswith("exec ")]) == 1


@pytest.mark.parametrize(("golden", "site"), [("watcher_pitzer.txt", "osc-pitzer"), ("watcher_short.txt", SHORT)])
def test_a_watchers_script_is_the_one_that_was_looked_at(
    golden: str, site: str | Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDGAT_ACCOUNT", "PAS0000" if site == "osc-pitzer" else "")
    found = load_site(site) if isinstance(site, str) else site
    command = [PYTHON, "-m", "kdgat.cli.main", "train", "can", "-O", 'seeds=[0, "1"]']
    text = watcher_script(found, LOGS.parent, LOGS, Path("/home/some one"), command)
    compare(text, GOLDEN / golden)


def test_the_jobs_process_takes_the_place_of_the_shell_and_of_nothing_else() -> None:
    # Slurm sends its SIGTERM to the direct child alone; whatever came before `exec` must be over by then.
    *_, last = script(load_site("slurm-test"), SMALL).strip().splitlines()
    assert last.startswith(f"exec {PYTHON} -P -m kdgat.cluster.job ")


def test_jobs_of_a_pool_run_side_by_side_and_are_no_attempts_at_the_stage() -> None:
    given = pool_arguments(load_site("slurm-test"), SMALL, DIRECTORY, LOGS, (), {"OMP_NUM_THREADS": "2"})
    del given["scheduler_options"], given["shared_temp_directory"]  # of the cluster, not of its jobs
    text = str(SLURMJob(scheduler="tls://127.0.0.1:41000", name="0", **given).job_script())
    assert "singleton" not in text
    assert given["job_name"] != job_name(DIRECTORY)
    assert "export OMP_NUM_THREADS=2" in text
    assert all(f"{name}=" in text for name in SECRETS)
    *_, last = text.strip().splitlines()
    assert last.startswith(f"exec {PYTHON} -P -m distributed.cli.dask_worker ")
    words = last.split()
    assert words[len(words) - words[::-1].index("--nthreads")] == "1"  # the last one counts
    assert "--no-nanny" in words


def test_what_a_job_is_told_survives_the_shell(tmp_path: Path) -> None:
    site = Site(name="here", scheduler="slurm", epilogue=("echo 'a  b' \"$HOME\"\ntrue", "done=%s"))
    told = {"OMP_NUM_THREADS": "2", "KDGAT_IMAGE": "/a b/$c.sif"}
    given = cluster_arguments(site, SMALL, DIRECTORY, LOGS, environment=told)
    program = "import sys, json; print(json.dumps(sys.argv[1:]))"
    line = " ".join(["python", "-c", shlex.quote(program), *given["worker_extra_args"]])
    printed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    options = parse_options(["tls://x", *json.loads(printed)])
    assert options.directory == str(DIRECTORY)
    assert options.connection == LOGS / "connection.json"
    assert options.environment == ["OMP_NUM_THREADS=2", "KDGAT_IMAGE=/a b/$c.sif"]
    assert options.epilogue == list(site.epilogue)
    assert (options.stall_timeout_s, options.alive_interval_s, options.on_lost_flow) == (900.0, 15.0, "detach")


def test_the_end_of_the_prologue_is_a_file_that_whoever_watches_sees(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    given = cluster_arguments(Site(name="here", scheduler="slurm"), SMALL, tmp_path, LOGS)
    *_, line = given["job_script_prologue"]
    subprocess.run(["bash", "-c", line], env={**os.environ, "SLURM_JOB_ID": "17"}, check=True)
    sign = JobFiles(directory, "17").sign_of_life()
    assert sign is not None
    assert sign[0] == ""


def test_a_directory_has_one_job_name_and_shares_it_with_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = job_name(tmp_path / "normal")
    assert name == job_name(Path("normal"))
    assert name.startswith("normal-")
    assert name != job_name(tmp_path / "another" / "normal")


def test_the_columns_that_squeue_has_for_names_tell_the_stage_and_the_seed(tmp_path: Path) -> None:
    assert job_name(tmp_path / "autoencoder-large-seed7-0123abcd")[:18] == "autoencoder-seed7-"


def test_jobs_that_older_versions_have_submitted_are_known(tmp_path: Path) -> None:
    directory = tmp_path / "normal-large-seed0-0123abcd"
    digest = job_name(directory).rpartition("-")[2]
    old = f"kdgat-{directory.name}-{digest}"
    assert old in job_names(directory)
    assert is_job_of(JobStatus("RUNNING", name=old), directory, tmp_path)
    assert f"watcher-{old}" in watcher_names(directory)
    copied = JobStatus("RUNNING", name=f"kdgat-{directory.name}-00000000", output=str(tmp_path / "x.out"))
    assert is_job_of(copied, directory, tmp_path)


@pytest.mark.parametrize("directive", ["--exclude=n7,n[1-2]", "--exclude n7,n[1-2]", "-xn7,n[1-2]", "-x 'n7,n[1-2]'"])
def test_nodes_that_the_site_excludes_stay_excluded_beside_ours(directive: str) -> None:
    site = Site(name="here", directives=(f"{directive} --exclusive", "--constraint=exclude"))
    (line,) = [line for line in script(site, SMALL, excluded_nodes=["n9"]).splitlines() if "--exclude" in line]
    assert line == "#SBATCH --exclude='n7,n[1-2],n9'"
    assert "#SBATCH --exclusive\n" in script(site, SMALL)
    assert "#SBATCH --constraint=exclude\n" in script(site, SMALL)


def test_a_file_of_dask_in_the_users_home_takes_nothing_out_of_the_script() -> None:
    theirs = {"jobqueue.slurm.job-directives-skip": ["--mem", "-J"], "jobqueue.slurm.shebang": "#!/bin/false"}
    undisturbed = script(load_site("slurm-test"), SMALL)
    with dask.config.set(theirs):
        assert script(load_site("slurm-test"), SMALL) == undisturbed


@pytest.mark.processes
def test_nothing_of_a_file_for_dask_comes_into_jobs(tmp_path: Path) -> None:
    theirs = {
        "account": "notebooks", "queue": "debug", "job-cpu": 3, "interface": "ib0", "death-timeout": 7,
        "project": "old", "header-skip": ["-J"], "extra": ["--x"], "env-extra": ["rm -r /"],
    }  # fmt: skip
    (tmp_path / "jobqueue.yaml").write_text(json.dumps({"jobqueue": {"slurm": theirs}}))
    program = f"""
from pathlib import Path
from flows.dask_jobs import job_script
from kdgat.cluster import Resources, Site
site = Site(name="plain", scheduler="slurm")
print(job_script(site, Resources(walltime_s=600, memory_mib=1500), Path("/x"), Path({str(tmp_path)!r})))
"""

    def printed(**more: str) -> str:
        environment = {**os.environ, **more}
        command = [THIS_PYTHON, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert printed(DASK_CONFIG=str(tmp_path), DASK_JOBQUEUE__SLURM__WALLTIME="1") == printed()


MODULE = """module() { case $2 in absent) echo "no $2" >&2; return 1;; *) echo "$*" >> loaded;; esac; }"""


@pytest.mark.parametrize(
    ("modules", "prologue", "environment", "loaded", "said"),
    [
        (["cuda/12", "gcc"], [MODULE], "", "load cuda/12\nload gcc\n", ""),
        (["cuda/12", "gcc"], ["module load own"], MODULE, "load cuda/12\nload gcc\nload own\n", ""),
        (
            ["cuda/12", "absent", "gcc"],
            [],
            MODULE,
            "load cuda/12\n",
            "module absent cannot be loaded on NODE",
        ),
        (["cuda/12"], [], "", "", "module cuda/12 cannot be loaded on NODE"),
        ([], ["module load absent", "echo on"], MODULE, "", "no absent\nprologue: `module load absent` failed on NODE"),
    ],
    ids=["of the prologue", "of the shell", "one fails", "nobody has it", "in the prologue"],
)
def test_modules_are_loaded_or_the_job_ends_and_says_which(
    modules: list[str], prologue: list[str], environment: str, loaded: str, said: str, tmp_path: Path
) -> None:
    site = Site(name="here", scheduler="slurm", modules=tuple(modules), prologue=tuple(prologue))
    given = cluster_arguments(site, SMALL, tmp_path, LOGS)
    text = "\n".join([environment, "uname() { echo NODE; }", *given["job_script_prologue"], "echo begun"])
    (tmp_path / "job.sh").write_text(text)
    clean = {name: os.environ[name] for name in ("PATH", "HOME")} | {"SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, env=clean, cwd=tmp_path, check=False)
    assert (path.read_text() if (path := tmp_path / "loaded").exists() else "") == loaded
    assert done.returncode == bool(said)
    assert ("begun" in done.stdout) == (not said)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("prologue", "failed"),
    [
        (["export A=1", "cd /absent", "echo on"], "cd /absent"),
        (["if true; then", "  absent_command", "fi"], "  absent_command"),
        ([". /absent"], ". /absent"),
        (
            ["[ -d /absent ] && cd /absent", "! true", "if [ -d /absent ]; then cd /absent; fi", "cd /absent || true"],
            "",
        ),
        (["f() { false; true; }", "f", ". ./read.sh"], ""),
    ],
)
def test_a_command_of_the_prologue_that_fails_ends_the_job_and_its_line_is_named(
    prologue: list[str], failed: str, tmp_path: Path
) -> None:
    given = cluster_arguments(Site(name="here", scheduler="slurm", prologue=tuple(prologue)), SMALL, tmp_path, LOGS)
    (tmp_path / "read.sh").write_text("false\ntrue\n")
    (tmp_path / "job.sh").write_text("\n".join([*given["job_script_prologue"], "false", "echo begun"]))
    clean = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, env=clean, cwd=tmp_path, check=False)
    assert (done.returncode, "begun" in done.stdout) == ((1, False) if failed else (0, True))
    assert (f"prologue: `{failed}` failed on" in done.stderr) == bool(failed)


def test_limits_of_the_login_node_stay_there_unless_the_site_says_otherwise() -> None:
    assert "#SBATCH --propagate=NONE\n" in script(Site(name="here"), SMALL)
    text = script(Site(name="here", directives=("--propagate=STACK",)), SMALL)
    assert re.findall("#SBATCH --propagate.*", text) == ["#SBATCH --propagate=STACK"]


def test_only_a_stage_with_gpus_asks_for_them() -> None:
    assert not [line for line in script(WITH_IMAGE, SMALL).splitlines() if "gpu" in line]
    any_type = LARGE.model_copy(update={"gpu_type": None, "gpus": 2})
    assert "#SBATCH --gres=gpu:2\n" in script(Site(name="here"), any_type)
    assert "#SBATCH --gpus-per-node=2\n" in script(Site(name="here", gpu_request="gpus-per-node"), any_type)


@pytest.mark.parametrize(("how", "share"), [("shard", 2), ("mps", 25)])
def test_a_part_of_a_gpu_is_asked_for_without_its_type(how: Literal["shard", "mps"], share: int) -> None:
    site = Site(name="here", gpu_request=how, gpu_share=share, limits=Limits(gpus=1))
    assert re.findall("#SBATCH --g.*", script(site, LARGE)) == [f"#SBATCH --gres={how}:{share}"]


def test_gpu_jobs_go_to_the_common_partition_where_there_is_no_other() -> None:
    assert "#SBATCH -p all\n" in script(Site(name="here", partition="all"), LARGE)


def test_without_an_interface_nothing_listens_beyond_this_machine() -> None:
    site = Site(name="here")
    given = arguments(site, SMALL)
    assert scheduler_options(site) == {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    assert given["worker_extra_args"][-1] == "--host=127.0.0.1"
    assert "interface" not in given


def test_with_an_interface_dask_chooses_its_address_there_and_metrics_stay_on_loopback() -> None:
    site = Site(name="here", interface="ib0")
    given = arguments(site, SMALL)
    assert given["interface"] == "ib0"
    assert scheduler_options(site) == {"interface": "ib0", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    assert "--host=127.0.0.1" not in given["worker_extra_args"]


@pytest.mark.parametrize("name", ["my runs", "100%", "it's", "$HOME", "a;b", "line\nfeed"])
def test_a_path_that_would_fall_apart_in_the_script_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"--out.*choose a path without spaces"):
        cluster_arguments(Site(name="here"), SMALL, DIRECTORY, tmp_path / name / "slurm")


def test_other_characters_of_a_path_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "run-1.2_a+b@c=d,e:f~é" / "slurm"
    given = {**cluster_arguments(Site(name="here"), SMALL, DIRECTORY, path)}
    assert given["log_directory"] == str(path)


def test_scratch_is_what_its_variables_are_on_the_node() -> None:
    site = Site(name="here", scratch='/scratch/$USER/my "own" `files`')
    (line,) = [line for line in script(site, SMALL).splitlines() if "KDGAT_SCRATCH" in line]
    command = ["bash", "-c", f'{line}; echo "$KDGAT_SCRATCH"']
    said = subprocess.run(
        command, env={"USER": "ada", "PATH": os.environ["PATH"]}, capture_output=True, text=True
    ).stdout
    assert said == '/scratch/ada/my "own" `files`\n'


def test_what_opens_servers_and_databases_stays_out_of_a_job() -> None:
    secrets = {name for name, setting in _get_settings_fields(Settings).items() if setting.is_secret and name.isupper()}
    assert {*secrets, "PGPASSWORD"} == set(SECRETS)
    text = script(Site(name="here"), SMALL)
    (exported,) = re.findall("#SBATCH --export=ALL,(.*)", text)
    assert exported.split(",") == [f"{name}=" for name in SECRETS]
    # In the shell of the job, before anything that the site has asked for.
    (line,) = [line for line in text.splitlines() if line.startswith("unset ")]
    environment = {
        "PATH": os.defpath,
        "SITE": "here",
        "PREFECT_API_URL": "http://a",
        **dict.fromkeys(SECRETS, "secret"),
    }
    answer = subprocess.run(["bash", "-c", f"{line}; env"], env=environment, capture_output=True, text=True, check=True)
    assert "secret" not in answer.stdout
    assert "PREFECT" not in answer.stdout
    assert "SITE=here" in answer.stdout


@pytest.mark.parametrize(("readable_by", "umask"), [("user", "0077"), ("group", "0027"), ("all", "0022")])
def test_files_of_a_job_are_for_whom_the_site_says(readable_by: Any, umask: str) -> None:
    assert f"\numask {umask}\n" in script(Site(name="here", readable_by=readable_by), SMALL)
    assert "\numask 0077\n" in script(Site(name="here"), SMALL)


@pytest.mark.processes
def test_a_watcher_waits_on_a_node_without_its_files_and_says_so_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", THIS_PYTHON)
    out, hidden, folder = tmp_path / "out", tmp_path / "hidden", tmp_path / "work here"
    (out / "slurm").mkdir(parents=True)
    out.rename(hidden)
    text = watcher_script(SHORT, out, out / "slurm", folder, ["pwd"])
    with subprocess.Popen(["bash", "-c", text], cwd="/", env={**os.environ, "SLURM_JOB_ID": "7"}) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert not out.exists()  # nothing is made at the place of what is away
        hidden.rename(out)
        folder.mkdir()
        assert process.wait(120) == 0
    waited, ran = (out / "slurm" / "watcher-7.out").read_text().splitlines()
    assert "had not the files of the run" in waited
    assert ran == str(folder)
