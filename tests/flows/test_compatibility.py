from pathlib import Path

import pytest

from flows import compatibility
from flows.compatibility import KNOWN, OF_EVERY_SERVER, find_conflicts, require_compatible
from flows.deployment import __main__ as deployment
from flows.embedded.server import prefect_api
from kdgat.base import UserError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the versions that are found, to be changed; those that are really here are not looked at."""
    versions = {"prefect": "3.8.8", "fastapi": "0.150.0", "sqlalchemy": "2.0.58"}
    monkeypatch.setattr(compatibility, "package_version", versions.get)
    return versions


def test_the_versions_that_these_tests_run_with_are_no_conflict() -> None:
    assert find_conflicts() == []


@pytest.mark.parametrize(("name", "version"), [("fastapi", "0.151.0"), ("fastapi", "0.165.0"), ("sqlalchemy", "2.1.0")])
def test_a_package_that_breaks_prefect_is_named_with_what_works(
    installed: dict[str, str], name: str, version: str
) -> None:
    installed[name] = version
    (conflict,) = find_conflicts()
    assert conflict.text.startswith(f"{name} {version} breaks Prefect 3.8.8: ")
    assert f"pip install '{name}{KNOWN[name][0]}'" in conflict.fix
    with pytest.raises(UserError, match=f"{name} {version} breaks"):
        require_compatible()


def test_another_prefect_has_conflicts_of_its_own(installed: dict[str, str]) -> None:
    installed.update(prefect="3.9.1", sqlalchemy="2.1.9")
    assert find_conflicts() == []


def test_schedules_that_do_not_work_do_not_keep_a_single_run_from_its_server(installed: dict[str, str]) -> None:
    installed["sqlalchemy"] = "2.1.9"
    require_compatible(OF_EVERY_SERVER)


def test_no_server_is_started_that_cannot_live(
    installed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed["fastapi"] = "0.165.0"
    with (
        pytest.raises(UserError, match=r"fastapi 0\.165\.0 breaks"),
        prefect_api(tmp_path / "a", tmp_path / "b"),
    ):
        pass
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    assert deployment.main(["up"]) == 1
    assert "error: fastapi 0.165.0 breaks Prefect 3.8.8" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
