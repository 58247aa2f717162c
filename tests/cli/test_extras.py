import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kdgat.cli.extras import BASE, declared_extras, find_extra
from kdgat.cli.main import COMMAND_GROUPS, CommandGroup, main

ROOT = Path(__file__).parents[2]
EXTRAS = {
    BASE: [Requirement("PyYAML>=6")],
    "data": [Requirement("numba>=0.61")],
    "flows": [Requirement("prefect-dask==0.3.7"), Requirement("psutil")],
}


@pytest.mark.parametrize(
    ("module", "extra"),
    [("yaml", BASE), ("numba.core.types", "data"), ("prefect_dask", "flows"), ("kdgat.nowhere", None)],
)
def test_a_module_is_found_in_the_extra_that_has_its_distribution(module: str, extra: str | None) -> None:
    assert find_extra(module, EXTRAS) == extra


def test_extras_of_the_installed_package_are_those_for_users() -> None:
    extras = declared_extras()
    assert next(iter(extras)) == BASE
    assert {"data", "flows", "report"} <= set(extras)
    assert not {"all", "dev", "docs"} & set(extras)


def test_a_module_of_our_own_that_is_missing_is_a_fault_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMAND_GROUPS, "doctor", CommandGroup("kdgat.cli.nowhere", ""))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        main(["doctor"])


def test_a_part_that_an_installed_package_lacks_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMAND_GROUPS, "doctor", CommandGroup("numba.nowhere", ""))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        main(["doctor"])


@pytest.mark.processes
@pytest.mark.parametrize("words", ["--version", "doctor", "plan can", "train trees --out x", "stage run x"])
def test_no_command_ends_in_a_traceback_where_nothing_but_kdgat_itself_is_installed(words: str, tmp_path: Path) -> None:
    """As after `pip install --no-deps`: Python without any site-packages."""
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from kdgat.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-ISc", script, str(ROOT), *words.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stderr.strip().endswith("pip install kdgat")) == (1, True), done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("lap solve x.csv", "data"),
        ("data synth --out x", "data"),
        ("train lap --out out", "all"),
        ("report x", "report"),
    ],
)
def test_no_command_ends_in_a_traceback_where_only_the_base_is_installed(
    words: str, extra: str, tmp_path: Path
) -> None:
    """The modules of extras are as if they were not installed; what is left is what the base asks for."""
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    script = (
        "import importlib.machinery, sys\n"
        "from importlib import metadata\n"
        "from kdgat.cli.extras import BASE, declared_extras\n"
        "names = {one.name.lower() for extra, found in declared_extras().items() if extra != BASE for one in found}\n"
        "kept = {one.name.lower() for one in declared_extras()[BASE]} | {'typer', 'rich', 'tqdm'}\n"
        "tops = {top for top, owners in metadata.packages_distributions().items()\n"
        "        if {owner.lower() for owner in owners} & (names - kept)}\n"
        "class WithoutExtras(importlib.machinery.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name.partition('.')[0] in tops else super().find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutExtras\n"
        "from kdgat.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stderr.strip().endswith(f"pip install 'kdgat[{extra}]'")) == (1, True), done.stderr
