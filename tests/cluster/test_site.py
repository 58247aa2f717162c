import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdgat.cluster import ResourceRequest, Site, SiteError, load_site
from kdgat.cluster.site import (
    ACCOUNT_VARIABLE,
    SITES_VARIABLE,
    Limits,
    WatcherRequest,
    charged_to,
    find_sites,
    read_site,
    require_usable,
    site_folders,
)
from kdgat.cluster.slurm import Slurm
from tests.support.commands import write_commands

SITES = Path(__file__).parents[2] / "deployments" / "sites"
SHIPPED = ("local", "example", "osc-ascend", "osc-pitzer", "slurm-test", "slurm-test-image")


@pytest.fixture(autouse=True)
def _only_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SITES_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write_site(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_sites_are_these() -> None:
    assert {path.stem for path in SITES.glob("*.yaml")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_site_loads_under_its_own_name(name: str) -> None:
    assert load_site(name).name == name


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shell_lines_of_shipped_sites_are_correct_shell(name: str) -> None:
    site = load_site(name)
    for line in (*site.prologue, *site.epilogue):
        done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cluster", ["pitzer", "ascend"])
def test_the_epilogue_of_osc_runs_where_there_is_no_gpu(cluster: str, tmp_path: Path) -> None:
    script = "\n".join(("set -eu", *load_site(f"osc-{cluster}").epilogue))
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert f"get_gpu_usage -M {cluster} 17" in done.stdout


def test_the_example_explains_every_key_in_one_line() -> None:
    text = (SITES / "example.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert set(content) == set(Site.model_fields)
    assert set(content["defaults"]) == set(ResourceRequest.model_fields)
    assert set(content["limits"]) == set(Limits.model_fields)
    assert set(content["watcher"]) == set(WatcherRequest.model_fields)
    for line in text.splitlines():
        if line.strip() and not line.startswith("#") and not line.rstrip().endswith(":"):
            assert "  # " in line, f"no comment: {line}"


def test_pitzer_asks_for_what_its_users_asked_for() -> None:
    site = load_site("osc-pitzer")
    assert (site.gpu_type, site.gpu_request, site.image) == ("v100", "gres", "$HOME/kdgat.sif")
    assert (site.defaults.memory, site.defaults.cores) == ("85G", 8)
    assert site.account is None, "everybody has another one"
    assert site.node_local == "$TMPDIR"


def test_an_image_in_the_home_folder_that_is_not_there_is_refused_before_jobs_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("kdgat.cluster.site.missing_configuration", lambda: "")
    site = Site(name="osc-pitzer", scheduler="slurm", image="${HOME}/kdgat.sif")
    with pytest.raises(SiteError, match=rf"image='{tmp_path}/kdgat.sif' is not there: build it \(kdgat"):
        require_usable(site)
    (tmp_path / "kdgat.sif").touch()
    require_usable(site)
    require_usable(site.model_copy(update={"image": "$HOMELAND/kdgat.sif"}))  # which nodes may know


def test_an_account_is_charged_above_what_the_site_says_and_nothing_is_charged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KDGAT_ACCOUNT", "PAS0001")
    assert load_site("osc-pitzer").account == "PAS0001"
    assert load_site("example").account == "PAS0001"
    assert load_site("local").account is None
    assert charged_to(load_site("example"), "PAS0002").account == "PAS0002"
    with pytest.raises(SiteError, match="account"):
        charged_to(load_site("example"), "two words")


def test_a_site_is_found_wherever_the_working_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_site("slurm-test").partition == "gpu"


def test_a_folder_of_ones_own_wins_over_the_working_folder_and_that_over_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_site(tmp_path / "deployments" / "sites", "mine", "partition: working\n")
    write_site(tmp_path / "deployments" / "sites", "slurm-test", "partition: working\n")
    assert load_site("mine").partition == load_site("slurm-test").partition == "working"
    write_site(tmp_path / "home" / ".config" / "kdgat" / "sites", "mine", "partition: home\n")
    assert load_site("mine").partition == "home"
    write_site(tmp_path / "own", "mine", "partition: own\n")
    monkeypatch.setenv(SITES_VARIABLE, str(tmp_path / "own"))
    assert load_site("mine").partition == "own"
    assert set(find_sites()) == {*SHIPPED, "mine"}


def test_a_strangers_site_in_the_working_folder_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_site(tmp_path / "deployments" / "sites", "theirs", "prologue: [rm -r /]\n")
    monkeypatch.setattr("os.getuid", lambda: 4242)
    monkeypatch.setattr(Path, "owner", lambda self: "mallory")
    if path.stat().st_uid == 0:  # root's files are nobody's trick
        os.chown(path, 4343, -1)
    assert "theirs" not in find_sites()
    assert "belongs to mallory and is left out" in caplog.text
    assert load_site(str(path)).name == "theirs"


def test_a_site_can_be_given_by_its_path(tmp_path: Path) -> None:
    path = write_site(tmp_path, "mine", "scheduler: slurm\nlimits: {walltime: 16:00:00}\n")
    site = load_site(str(path))
    assert (site.name, site.limits.walltime_s) == ("mine", 57_600)


def test_the_local_site_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_site("local")
    monkeypatch.setattr("kdgat.cluster.site.site_folders", lambda: [tmp_path])
    assert load_site("local") == shipped == Site(name="local")


def test_an_unknown_site_names_the_nearest_one_and_the_folders_searched() -> None:
    with pytest.raises(SiteError) as error:
        load_site("osc-pitzr")
    assert "'osc-pitzer'" in str(error.value)
    for folder in site_folders():
        assert str(folder) in str(error.value)


def test_a_site_unlike_any_other_names_them_all() -> None:
    with pytest.raises(SiteError, match="known sites: local, osc-ascend, osc-pitzer "):
        load_site("zzzzzz")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="no such file"):
        load_site(str(tmp_path / "absent.yaml"))


def test_a_folder_of_sites_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITES_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(SiteError, match=f"{SITES_VARIABLE}=.*absent"):
        load_site("local")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu_request: gress", ["gpu_request='gress'", "'gres'", "'gpus-per-node'"]),
        ("gpu_request: shard", ["gpu_request: shard", "need gpu_share"]),
        ("gpu_share: 2", ["gpu_request: gres with gpu_share=2", "take whole GPUs"]),
        ("{gpu_request: mps, gpu_share: 25}", ["gpu_request: mps gives a part of one GPU", "set limits.gpus to 1"]),
        (
            "{gpu_request: mps, gpu_share: 25, limits: {gpus: 1}, bigger_gpu_types: [a100]}",
            ["gpu_request: mps", "leave bigger_gpu_types out"],
        ),
        ("bigger_gpu_types: [a100, a100]", ["bigger_gpu_types: a100, a100: a type stands twice"]),
        (
            "gpu_type: a100\nbigger_gpu_types: [v100]",
            ["bigger_gpu_types: v100 has 32 GB at most", "40 GB or more of a100 were too small", "the smallest first"],
        ),
        ("bigger_gpu_types: [h100-80gb, a100-80gb]", ["a100-80gb has 80 GB at most", "80 GB or more of h100-80gb"]),
        ("partitions: gpu", ["'partitions'", "did you mean 'partition'"]),
        ("limits: {walltim: 3}", ["limits", "did you mean 'walltime'"]),
        ("limits: {walltime: 12:99:00}", ["limits.walltime='12:99:00' has 99 minutes", "write 13:39:00"]),
        ("staging: scratch", ["staging: scratch needs the key scratch"]),
        ("limits: {memory: 1O G}", ["limits.memory='1O G'", "85G"]),
        ("defaults: {cores: -2}", ["defaults.cores=-2: write 1 or more"]),
        ("defaults: {gpus: yes}", ["defaults.gpus='yes': write a whole number"]),
        ("defaults: {cores: 2.5}", ["defaults.cores=2.5: write a whole number"]),
        ("defaults: {adaptive: maybe}", ["defaults.adaptive='maybe': write true or false"]),
        ("limits: 3", ["limits=3: write keys with values, as {key: value}"]),
        ("prologue: module load cuda", ["prologue='module load cuda': write a list, as [a, b]"]),
        ("account: 7", ["account=7: write text, in quotes"]),
        ("limits: {jobs: 0}", ["limits.jobs=0: write 1 or more"]),
        ("defaults: {memory: 9G}\nlimits: {memory: 8G}", ["defaults.memory=9G", "limits.memory=8G"]),
        ("defaults: {walltime: 1-0}\nlimits: {walltime: 16:00:00}", ["1-00:00:00", "16:00:00"]),
        ("gpu_type: v100:1", ["gpu_type='v100:1'", "as v100"]),
        ("partition: 'gpu long'", ["partition='gpu long'", "without spaces"]),
        ("partition: ''", ["partition=''"]),
        ("modules: [module load cuda]", ["modules", "write 'cuda'"]),
        ("modules: ['cuda; rm x']", ["modules", "cuda; rm x"]),
        ("directives: ['#SBATCH --exclusive']", ["directives", "without #SBATCH"]),
        ("directives: ['--time=9']", ["directives", "set resources.STAGE.walltime instead"]),
        ("directives: ['-t9']", ["directives", "set resources.STAGE.walltime instead"]),
        ("directives: ['--gres gpu:1']", ["directives", "set gpu_request instead"]),
        ("directives: ['--requeue']", ["directives", "leave it out"]),
        ("directives: ['--exclusive --requeue']", ["directives", "leave it out"]),
        ("directives: ['-Mowens']", ["directives", "run kdgat on that cluster"]),
        ("directives: ['--clusters=owens']", ["directives", "run kdgat on that cluster"]),
        ("directives: ['-W']", ["directives", "only after the job has ended"]),
        ("directives: ['--wait']", ["directives", "only after the job has ended"]),
        ("directives: ['--parsable']", ["directives", "the number of the job"]),
        ("directives: ['--test-only']", ["directives", "no job would be handed in"]),
        ("directives: ['--export=NONE']", ["directives", "set variables in prologue"]),
        ("directives: ['--comment=\"open']", ["directives", "close the quotes"]),
        ('directives: ["--x\\n--y"]', ["directives", "--constraint=48core"]),
        ("poll_interval_s: 0", ["poll_interval_s=0: write more than 0"]),
        ("silence_timeout_s: .inf", ["silence_timeout_s=inf: write a finite number"]),
        ("on_start_timeout: never", ["on_start_timeout='never': choose 'wait' or 'stop'"]),
        ("scheduler: pbs", ["scheduler='pbs'", "'slurm'"]),
        ("just words", ["not a mapping", "example.yaml"]),
        ("scheduler: slurm\na: [", ["is no YAML: line 2, column 5: expected the node content, but", "mend it there"]),
        ("name: a\nname: b", ["is no YAML: the key 'name' stands twice, in lines 1 and 2: remove one"]),
    ],
)
def test_a_wrong_site_file_is_refused_with_file_key_value_and_fix(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write_site(tmp_path, "wrong", text)
    with pytest.raises(SiteError) as error:
        read_site(path)
    for word in (str(path), *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "gpu_type: v100\nbigger_gpu_types: [v100, a100, h100]",
        "gpu_type: v100-16g\nbigger_gpu_types: [v100-32g, gold, v100]",
        "gpu_type: a100_1g.5gb\nbigger_gpu_types: [a100_3g.20gb, a100]",
        "gpu_type: a40\nbigger_gpu_types: [a100]",
    ],
)
def test_bigger_gpus_are_believed_where_they_may_have_more_memory(tmp_path: Path, text: str) -> None:
    assert read_site(write_site(tmp_path, "mine", f"scheduler: slurm\n{text}")).bigger_gpu_types


def test_directives_that_no_key_stands_for_are_kept(tmp_path: Path) -> None:
    path = write_site(
        tmp_path, "mine", "directives: ['--constraint=48core', '--exclusive', '-Cv100', '--wait-all-nodes=1']"
    )
    assert len(read_site(path).directives) == 4


def test_an_image_is_refused_where_no_jobs_would_run_in_it(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"mine\.yaml.*image: stages on this machine run in this Python; set scheduler"):
        read_site(write_site(tmp_path, "mine", "image: /apps/kdgat.sif"))


def test_a_slurm_site_is_refused_where_there_is_no_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    require_usable(load_site("local"))
    with pytest.raises(SiteError, match=r"slurm-test.*sbatch.*login node"):
        require_usable(load_site("slurm-test"))


def test_a_shell_that_leads_to_no_slurm_at_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo 'sbatch: error: fetch_config: DNS SRV lookup failed' >&2; exit 1"
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", sbatch=said))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    require_usable(load_site("local"))
    with pytest.raises(SiteError, match=r"slurm-test: Slurm has no configuration.*SLURM_CONF is not set: .*export"):
        require_usable(load_site("slurm-test"))


def test_a_configuration_that_is_not_there_is_refused_without_asking_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", sbatch=f"echo > {asked}"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(SiteError, match=r"SLURM_CONF=.*slurm\.conf' is no file: .*login node"):
        require_usable(load_site("slurm-test"))
    assert not asked.exists(), "Slurm's own commands wait a minute for that file"


@pytest.mark.parametrize("has_file", [True, False])
def test_a_controller_that_is_merely_down_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    # Of a cluster whose controller hands out the configuration: it was found, and did not answer.
    said = "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1"
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", sbatch=said))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    if has_file:
        (tmp_path / "slurm.conf").touch()
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    require_usable(load_site("slurm-test"))


@pytest.fixture
def _sbatch_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    shutil.copy(sys.executable, folder / "sbatch")  # anything that has a version: nothing else is asked of it
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.usefixtures("_sbatch_somewhere")
def test_an_image_or_interface_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"image='/absent\.sif'.*build it"):
        require_usable(Site(name="a", scheduler="slurm", image="/absent.sif"))
    with pytest.raises(SiteError, match=r"interface='ib77'.*choose one of .*lo"):
        require_usable(Site(name="a", scheduler="slurm", interface="ib77"))
    image = tmp_path / "there.sif"
    image.touch()
    for known in (str(image), "$SCRATCH/a.sif", "docker://debian"):
        require_usable(Site(name="a", scheduler="slurm", image=known, interface="lo"))


OF_A_PERSON = {
    "SBATCH_ACCOUNT": "theirs",
    "SBATCH_QOS": "long",
    "SBATCH_PARTITION": "debug",
    "SBATCH_CONSTRAINT": "a&b",
    "SBATCH_RESERVATION": "course",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_WAIT": "1",
    "SBATCH_UNHEARD_OF": "1",
}


@pytest.fixture
def _person(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in OF_A_PERSON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SCANCEL_STATE", "PENDING")
    monkeypatch.setenv("SLURM_CLUSTERS", "another")
    monkeypatch.delenv(ACCOUNT_VARIABLE, raising=False)


@pytest.mark.usefixtures("_sbatch_somewhere", "_person")
def test_what_a_site_leaves_open_is_taken_from_a_persons_environment_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = read_site(write_site(tmp_path, "open", "scheduler: slurm\n"))
    assert (site.account, site.qos, site.partition) == ("theirs", "long", "debug")
    assert site.directives == ("--constraint='a&b'", "--reservation=course")
    require_usable(site)
    given, left = caplog.messages
    assert "jobs get what the environment says: SBATCH_ACCOUNT=theirs" in given
    assert left.endswith("not the environment: SBATCH_TIMELIMIT, SBATCH_UNHEARD_OF, SBATCH_WAIT")
    assert "SBATCH_ACCOUNT" not in left


@pytest.mark.usefixtures("_sbatch_somewhere", "_person")
def test_what_site_or_command_state_is_what_jobs_get(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "scheduler: slurm\nqos: short\ngpu_partition: gpu\ndirectives: [-C own, --reservation=own]\n"
    site = charged_to(read_site(write_site(tmp_path, "stated", text)), "mine")
    assert (site.account, site.qos, site.partition) == ("mine", "short", None)
    assert site.directives == ("-C own", "--reservation=own")
    require_usable(site)
    (left,) = caplog.messages
    assert all(name in left for name in OF_A_PERSON)


@pytest.mark.usefixtures("_person")
def test_no_command_of_slurm_reads_a_persons_options_or_learns_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("KDGAT_NOTIFY", "PREFECT_API_KEY", "PGPASSWORD", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_password")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    for name in ("SLURM_CONF", "SLURM_JWT", "MY_DATA", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "kept")
    program = tmp_path / "sbatch"
    program.write_text(f"#!{shutil.which('bash')}\n{shutil.which('env')} -0 > {tmp_path / 'seen'}; echo 17\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Slurm().submit(tmp_path / "script") == "17"
    # A value may have several lines, as of a shell's function that is exported.
    seen = dict(entry.split("=", 1) for entry in (tmp_path / "seen").read_text().split("\0") if entry)
    assert not {*OF_A_PERSON, *secrets, "SCANCEL_STATE", "SLURM_CLUSTERS"} & seen.keys()
    assert {name for name, value in seen.items() if value == "kept"} == {
        "SLURM_CONF", "SLURM_JWT", "MY_DATA", "OMP_NUM_THREADS",
    }  # fmt: skip


@pytest.mark.parametrize(("readable_by", "modes"), [("user", "700 600"), ("group", "750 640"), ("all", "755 644")])
def test_files_are_made_for_whom_the_site_says_and_others_as_ever(tmp_path: Path, readable_by: Any, modes: str) -> None:
    before = os.umask(0o002)
    try:
        with Site(name="here", readable_by=readable_by).creating_files():
            (tmp_path / "made").mkdir()
            command = ["touch", str(tmp_path / "made" / "by a child")]
            subprocess.run(command, check=True)
        (tmp_path / "after").touch()
    finally:
        assert os.umask(before) == 0o002
    made = [tmp_path / "made", tmp_path / "made" / "by a child"]
    assert " ".join(f"{stat.S_IMODE(path.stat().st_mode):o}" for path in made) == modes
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) == 0o664
