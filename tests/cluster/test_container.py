import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdgat.base import UserError
from kdgat.cluster import Site
from kdgat.cluster.container import IMAGE_CHANGED, clearing_lines, container_command, container_lines, staging_lines
from kdgat.container import apptainer
from kdgat.container.binds import Bind
from kdgat.container.layout import CACHES, GPU_CACHES, without_personal_settings

FLOWS_OWN = "/opt/the env/bin/python"
CGROUPS = "/sys/fs/cgroup:/sys/fs/cgroup:ro"
OURS = f"kdgat-{os.getuid()}"


def at_site(**keys: Any) -> Site:
    return Site(name="here", scheduler="slurm", **keys)


def words(site: Site, *, uses_gpu: bool = False, binds: tuple[Bind, ...] = (), folder: Path | None = None) -> list[str]:
    return shlex.split(container_command(site, FLOWS_OWN, uses_gpu, binds, folder))


def job(
    site: Site, after: str, tmp_path: Path, stamp: str = "", **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run what a job's script says before Python, then a line of ours."""
    script = "\n".join(
        [*clearing_lines(site), *site.prologue, *container_lines(site, stamp), *staging_lines(site), after]
    )
    variables = {**os.environ, "SLURM_JOB_ID": "7", **environment}
    return subprocess.run(["bash", "-c", script], env=variables, cwd=tmp_path, capture_output=True, text=True)


def run_lines(site: Site, after: str, tmp_path: Path, **environment: str) -> str:
    done = job(site, after, tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_without_an_image_the_sites_python_runs_or_else_the_flows_own() -> None:
    assert words(Site(name="here", python="/opt/python")) == ["/opt/python"]
    assert words(Site(name="here")) == [FLOWS_OWN]
    assert container_lines(Site(name="here")) == []


def test_in_an_image_its_own_python_runs_unless_the_site_names_one() -> None:
    found = words(at_site(image="kdgat.sif"))
    assert found[:2] == ["apptainer", "exec"]
    assert found[-2:] == ["kdgat.sif", "python"]
    assert words(at_site(image="kdgat.sif", python="python3"))[-1] == "python3"


@pytest.mark.parametrize("keys", [{"python": "$ENV/bin/py thon"}, {"image": "$ENV/a.sif", "python": "${ENV}/python"}])
def test_variables_of_a_site_are_what_they_are_on_the_node(keys: dict[str, str]) -> None:
    command = f"ENV='/the env'; printf '%s\n' {container_command(at_site(**keys), FLOWS_OWN, False)}"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[-len(keys) :] == [
        value.replace("${ENV}", "$ENV").replace("$ENV", "/the env") for value in keys.values()
    ]


def test_gpus_are_passed_into_the_image_only_where_they_are_used() -> None:
    assert "--nv" in words(at_site(image="kdgat.sif"), uses_gpu=True)
    assert "--nv" not in words(at_site(image="kdgat.sif"))


def test_nothing_is_bound_but_what_is_named_upper_folders_first() -> None:
    run, data = Path("/tmp/my runs/x"), Path("/data")
    binds = (Bind(run, run, is_writable=True), Bind(Path("/gpfs/data"), data))
    assert words(at_site(image="an image.sif"), binds=binds, folder=run) == [
        *("apptainer", "exec", "--no-mount", "home,cwd,tmp", "--pwd", "/tmp/my runs/x"),
        *(
            "--bind",
            "/gpfs/data:/data:ro",
            "--bind",
            "/tmp/my runs/x",
            "--bind",
            CGROUPS,
            "--bind",
            "$KDGAT_NODE_LOCAL",
        ),
        *("an image.sif", "python"),
    ]


@pytest.mark.parametrize("node_local", ["$LOCAL/of a job", "{tmp_path}/of a job"])
def test_of_the_nodes_disk_only_a_folder_of_ours_is_bound_and_is_tmpdir_inside(node_local: str, tmp_path: Path) -> None:
    site = at_site(image="kdgat.sif", node_local=node_local.format(tmp_path=tmp_path))
    ours = tmp_path / "of a job" / OURS
    command = f"printf '%s\\n' \"$APPTAINERENV_TMPDIR\" {container_command(site, FLOWS_OWN, False)}"
    said = run_lines(site, command, tmp_path, LOCAL=str(tmp_path)).splitlines()
    assert said[0] == str(ours)
    assert said[-4:] == ["--bind", str(ours), "kdgat.sif", "python"]
    assert ours.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("node_local", "environment"),
    [("$LOCAL", {}), ("$LOCAL/x", {"LOCAL": "/proc"}), ("/dev/null", {}), ("$LOCAL", {"LOCAL": "of:two"})],
)
def test_a_job_ends_where_the_node_has_no_folder_for_it_and_says_why(
    node_local: str, environment: dict[str, str], tmp_path: Path
) -> None:
    done = job(at_site(image="kdgat.sif", node_local=node_local), "echo went on", tmp_path, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"node_local: {node_local}: ")
    assert f"on {os.uname().nodename}; name " in last


def test_somebody_elses_folder_on_the_nodes_disk_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / OURS).symlink_to(tmp_path / "theirs")
    site = at_site(image="kdgat.sif", node_local=str(tmp_path))
    folder = Path(run_lines(site, 'printf %s "$KDGAT_NODE_LOCAL"', tmp_path))
    assert folder.resolve().parent == tmp_path
    assert folder.resolve() != tmp_path / "theirs"
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\nb"])
def test_a_path_that_apptainer_would_take_for_two_is_refused_with_the_fix(name: str) -> None:
    bind = Bind(Path("/data", name), Path("/data", name))
    with pytest.raises(UserError, match="symbolic link"):
        words(at_site(image="kdgat.sif"), binds=(bind,))


def test_temporary_files_go_to_the_nodes_own_disk(tmp_path: Path) -> None:
    site = at_site(image="kdgat.sif", node_local="$LOCAL/of a job")
    assert run_lines(site, 'echo "$TMPDIR"', tmp_path, LOCAL=str(tmp_path)) == f"{tmp_path}/of a job\n"
    assert (tmp_path / "of a job").is_dir()


def test_caches_lie_on_the_nodes_own_disk_one_for_each_image(tmp_path: Path) -> None:
    image = tmp_path / "kdgat.sif"
    site = at_site(image=str(image), node_local=str(tmp_path / "node local"))
    show = 'env | sed -n "s/^APPTAINERENV_//p"'
    found = []
    for content in (b"one image", b"another image"):
        image.write_bytes(content)
        said = dict(line.split("=", 1) for line in run_lines(site, show, tmp_path).splitlines())
        del said["TMPDIR"]
        assert set(said) == {*CACHES, *GPU_CACHES}
        (folder,) = {Path(path).parent for path in said.values()}
        assert folder.parent == tmp_path / "node local" / OURS
        found.append(folder)
    assert found[0] != found[1]


def test_apptainer_is_found_where_kdgat_installs_it_or_the_user_says(tmp_path: Path) -> None:
    site = at_site(image="kdgat.sif", node_local=str(tmp_path))
    folders = run_lines(site, 'echo "$PATH"', tmp_path).strip().split(":")
    assert folders[-1] == str(apptainer.INSTALLED.parent)
    named = run_lines(site, 'echo "$PATH"', tmp_path, KDGAT_APPTAINER="/my own/bin/apptainer").strip().split(":")
    assert named == ["/my own/bin", *folders]


def test_the_hosts_python_and_settings_that_cut_variables_off_stay_outside(tmp_path: Path) -> None:
    site = at_site(image="kdgat.sif", node_local=str(tmp_path))
    harmful = {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/y", "APPTAINER_CLEANENV": "1", "SINGULARITY_CONTAIN": "1"}
    said = run_lines(site, "env", tmp_path, **harmful)
    assert not re.search(rf"^({'|'.join(harmful)})=", said, flags=re.MULTILINE)
    assert "SLURM_JOB_ID=7" in said.splitlines()


def test_what_a_person_has_set_for_containers_stays_outside_but_not_what_the_site_sets(tmp_path: Path) -> None:
    site = at_site(
        image="kdgat.sif",
        node_local=str(tmp_path),
        prologue=("export APPTAINER_BIND=/of/the/site APPTAINERENV_OF_THE_SITE=1",),
    )
    personal = {
        "APPTAINER_BIND": "/home", "APPTAINER_BINDPATH": "/home", "SINGULARITY_BIND": "/home", "APPTAINER_MOUNT": "x",
        "APPTAINERENV_PYTHONPATH": "/x", "SINGULARITYENV_PYTHONPATH": "/x", "SINGULARITY_BINDPATH": "/absent",
    }  # fmt: skip
    kept = {"APPTAINER_CACHEDIR": "/cache", "KDGAT_SOMETHING": "1"}
    said = run_lines(site, "env", tmp_path, **personal, **kept).splitlines()
    for line in ("APPTAINER_BIND=/of/the/site", "APPTAINERENV_OF_THE_SITE=1", "APPTAINER_CACHEDIR=/cache"):
        assert line in said
    assert not [line for line in said if line.partition("=")[0] in set(personal) - {"APPTAINER_BIND"}]
    assert without_personal_settings({**personal, **kept, "PYTHONPATH": "/x"}) == kept


@pytest.mark.parametrize(
    ("said", "expected"),
    [("echo 2026-03-01T12:30:00", "1772368200"), ("echo N/A", ""), ("exit 1", ""), ("true", ""), ("sleep 0", "")],
)
def test_the_end_of_the_job_is_asked_for_outside_where_slurm_does_not_say_it(
    said: str, expected: str, tmp_path: Path
) -> None:
    site = at_site(image="kdgat.sif", node_local=str(tmp_path))
    write_command(tmp_path / "bin", "squeue", said)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    show = 'env | sed -n "s/^SLURM_JOB_END_TIME=//p"'
    assert run_lines(site, show, tmp_path, PATH=path, TZ="UTC", SLURM_JOB_END_TIME="").strip() == expected
    assert run_lines(site, show, tmp_path, PATH=path, SLURM_JOB_END_TIME="99") == "99\n"


def test_the_state_of_the_image_that_the_job_starts_is_noted(tmp_path: Path) -> None:
    image = tmp_path / "an image.sif"
    image.write_bytes(b"12345")
    os.utime(image, (1_700_000_000, 1_700_000_000))
    link = tmp_path / "current.sif"
    link.symlink_to(image)
    site = at_site(image="$WHERE/current.sif", node_local=str(tmp_path))
    assert run_lines(site, 'echo "$KDGAT_IMAGE_STARTED"', tmp_path, WHERE=str(tmp_path)) == "5:1700000000\n"


def test_a_job_ends_where_the_image_is_not_the_one_that_was_checked(tmp_path: Path) -> None:
    image = tmp_path / "an image.sif"
    image.write_bytes(b"12345")
    os.utime(image, (1_700_000_000, 1_700_000_000))
    site = at_site(image=str(image), node_local=str(tmp_path))
    for stamp in ("5:1700000000", ""):  # the same; none where the image could not be checked
        assert job(site, "echo went on", tmp_path, stamp).stdout == "went on\n"
    for stamp in ("5:1700000001", "6:1700000000"):
        done = job(site, "echo went on", tmp_path, stamp)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"image {image} {IMAGE_CHANGED}" in done.stderr
        assert stamp in done.stderr
    image.unlink()
    done = job(site, "echo went on", tmp_path, stamp)
    assert done.returncode == 1
    assert f"image {image} cannot be read on {os.uname().nodename}" in done.stderr
    assert IMAGE_CHANGED not in done.stderr  # the node's fault, not somebody's who builds


def test_the_shell_of_a_job_script_understands_a_path_with_spaces(tmp_path: Path) -> None:
    python = tmp_path / "the env" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    command = f"exec {container_command(Site(name='here'), str(python), False)} -c 'print(1)'"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("keys", "folder"),
    [
        ({"staging": "none"}, ""),
        ({"staging": "node_local", "node_local": "$LOCAL"}, f"/kdgat-inputs-{os.getuid()}"),
        ({"staging": "scratch", "scratch": "$LOCAL/kdgat"}, "/kdgat/inputs"),
        ({"staging": "node_local", "node_local": "$LOCAL", "image": "x.sif"}, f"/{OURS}/inputs"),
    ],
)
def test_stages_copy_their_inputs_to_where_the_site_says(keys: dict[str, str], folder: str, tmp_path: Path) -> None:
    found = run_lines(at_site(**keys), 'echo "$KDGAT_CACHE_ROOT"', tmp_path, LOCAL=str(tmp_path), KDGAT_CACHE_ROOT="")
    assert found == (f"{tmp_path}{folder}\n" if folder else "\n")


def test_without_a_folder_on_the_node_nothing_is_copied_there(tmp_path: Path) -> None:
    site = at_site(staging="node_local", node_local="$LOCAL")
    assert run_lines(site, 'echo "$KDGAT_CACHE_ROOT"', tmp_path, LOCAL="", KDGAT_CACHE_ROOT="") == "\n"


def test_scratch_is_bound_into_the_image_where_stages_copy_their_inputs_there() -> None:
    site = at_site(image="x.sif", staging="scratch", scratch="/scratch/me")
    assert '--bind "$KDGAT_CACHE_ROOT"' in container_command(site, FLOWS_OWN, False)
    assert "CACHE_ROOT" not in container_command(at_site(image="x.sif"), FLOWS_OWN, False)
