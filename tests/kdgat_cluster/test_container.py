import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.cluster.container import container_command
from kdgat.cluster.site import Site

FLOWS_OWN = "/opt/the env/bin/python"


def words(site: Site, *, uses_gpu: bool = False, binds: tuple[Path, ...] = ()) -> list[str]:
    return shlex.split(container_command(site, FLOWS_OWN, uses_gpu, binds))


def test_without_an_image_the_sites_python_runs_or_else_the_flows_own() -> None:
    assert words(Site(name="here", python="/opt/python")) == ["/opt/python"]
    assert words(Site(name="here")) == [FLOWS_OWN]


def test_in_an_image_its_own_python_runs_unless_the_site_names_one() -> None:
    assert words(Site(name="here", image="kdgat.sif")) == ["apptainer", "exec", "kdgat.sif", "python"]
    assert words(Site(name="here", image="kdgat.sif", python="python3"))[-1] == "python3"


@pytest.mark.parametrize("keys", [{"python": "$ENV/bin/py thon"}, {"image": "$ENV/a.sif", "python": "${ENV}/python"}])
def test_variables_of_a_site_are_what_they_are_on_the_node(keys: dict[str, str]) -> None:
    command = f"ENV='/the env'; printf '%s\n' {container_command(Site(name='here', **keys), FLOWS_OWN, False)}"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[-len(keys) :] == [
        value.replace("${ENV}", "$ENV").replace("$ENV", "/the env") for value in keys.values()
    ]


def test_gpus_are_passed_into_the_image_only_where_they_are_used() -> None:
    assert "--nv" in words(Site(name="here", image="kdgat.sif"), uses_gpu=True)
    assert "--nv" not in words(Site(name="here", image="kdgat.sif"))


def test_each_directory_is_bound_once_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    binds = (Path("my runs"), Path("/data"), tmp_path / "my runs")
    found = words(Site(name="here", image="an image.sif"), binds=binds)
    assert found == [
        *["apptainer", "exec", "--bind", str(tmp_path / "my runs"), "--bind", "/data"],
        *["an image.sif", "python"],
    ]


def test_the_shell_of_a_job_script_understands_a_path_with_spaces(tmp_path: Path) -> None:
    python = tmp_path / "the env" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    command = f"exec {container_command(Site(name='here'), str(python), False)} -c 'print(1)'"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout == "1\n"
