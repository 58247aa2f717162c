import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from prefect.settings import Settings

from flows.deployment.installation import (
    DATABASE_VARIABLE,
    HEARTBEAT_S,
    RETENTION_DAYS,
    WORKER_POLL_S,
    Installation,
    machine_timezone,
    without_passwords,
)
from kdgat.base import UserError


def find(tmp_path: Path, **variables: str) -> Installation:
    return Installation.find({"KDGAT_HOME": str(tmp_path / "home"), **variables})


def test_everything_lies_in_one_home_by_default(tmp_path: Path) -> None:
    here = find(tmp_path)
    assert {path.parent for path in (here.data_root, here.outputs, here.registry, here.inbox)} == {tmp_path / "home"}
    assert here.database == f"sqlite+aiosqlite:///{tmp_path / 'home' / 'prefect' / 'prefect.db'}"
    assert (here.site, here.port, here.url) == ("local", 4200, "http://127.0.0.1:4200/api")


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    find(tmp_path, KDGAT_DATA_ROOT="/some/where", KDGAT_SITE="pitzer", KDGAT_NIGHTLY_CRON="30 1 * * *").write()
    assert find(tmp_path).data_root == Path("/some/where")
    assert find(tmp_path).nightly_cron == "30 1 * * *"
    again = find(tmp_path, KDGAT_SITE="local")
    assert (again.site, again.data_root) == ("local", Path("/some/where"))


def test_who_is_told_of_nights_is_remembered(tmp_path: Path) -> None:
    assert find(tmp_path).notify == ""
    address = "mailtos://me:secret@example.org?to=ops@example.org&mode=ssl"
    find(tmp_path, KDGAT_NOTIFY=address).write()
    assert find(tmp_path).notify == address
    assert find(tmp_path, KDGAT_NOTIFY="off").notify == "off"


def test_a_shell_and_the_reader_find_the_same_in_the_file(tmp_path: Path) -> None:
    here = find(tmp_path, KDGAT_DATA_ROOT=f"{tmp_path}/with a space and a 'quote'", KDGAT_NIGHTLY_CRON="*/5 * * * *")
    here.write()
    script = f'set -a; . {shlex.quote(str(here.path))}; printf "%s|%s" "$KDGAT_DATA_ROOT" "$KDGAT_NIGHTLY_CRON"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert said.stdout == f"{here.data_root}|{here.nightly_cron}"
    assert find(tmp_path) == here


def test_the_file_is_for_its_owner_alone_since_a_database_may_have_a_password(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://kdgat:secret@localhost/kdgat"
    here = find(tmp_path, **{DATABASE_VARIABLE: url})
    here.write()
    assert stat.S_IMODE(here.path.stat().st_mode) == 0o600
    assert find(tmp_path).database == url
    assert find(tmp_path, PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://other/db").database == url


def test_a_home_is_made_for_its_owner_alone_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    here = find(tmp_path)
    here.make_home()
    assert stat.S_IMODE(here.home.stat().st_mode) == 0o700
    here.home.chmod(0o750)
    here.write()
    assert stat.S_IMODE(here.home.stat().st_mode) == 0o750


AUTH_STRINGS = ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING")


def test_the_string_that_the_server_asks_for_is_made_once(tmp_path: Path) -> None:
    # That of another server, which the user's shell has for it.
    first = find(tmp_path, PREFECT_API_AUTH_STRING="of:another")
    assert len(first.auth_string) > len("kdgat:") + 30
    first.write()
    again = find(tmp_path)
    assert again.auth
    assert {again.environment()[name] for name in AUTH_STRINGS} == {first.auth_string}
    assert find(tmp_path / "other").auth_string != first.auth_string


def test_who_wants_no_string_is_asked_for_none_until_further_notice(tmp_path: Path) -> None:
    find(tmp_path).write()
    without = find(tmp_path, KDGAT_AUTH="0")
    without.write()
    again = find(tmp_path)
    assert not again.auth
    assert not set(AUTH_STRINGS) & set(again.environment())
    assert not any(name in again.path.read_text() for name in AUTH_STRINGS)
    assert find(tmp_path, KDGAT_AUTH="1").auth


def test_an_installation_of_before_there_was_a_string_by_default_gets_one(tmp_path: Path) -> None:
    here = find(tmp_path, KDGAT_AUTH="0", KDGAT_SITE="pitzer")
    here.write()
    here.path.write_text(here.path.read_text().replace("KDGAT_AUTH=off", "KDGAT_AUTH=0"))
    read_by_a_shell = {name: str(value) for name, value in here.environment().items()} | {"KDGAT_AUTH": "0"}
    for after in (find(tmp_path), Installation.find(read_by_a_shell)):
        assert after.auth
        assert after.auth_string
        assert after.site == "pitzer"
    assert not find(tmp_path, KDGAT_AUTH="0").auth


def test_pages_of_the_ui_alone_may_ask_the_server(tmp_path: Path) -> None:
    origins = find(tmp_path, KDGAT_PORT="4300").environment()["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]
    assert origins.split(",") == ["http://127.0.0.1:4300", "http://localhost:4300"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite+aiosqlite:////a/b.db", "sqlite+aiosqlite:////a/b.db"),
        ("postgresql+asyncpg://me:SECRET@host:5433/db", "postgresql+asyncpg://me:***@host:5433/db"),
        ("postgresql+asyncpg:///db?host=h&user=u&password=SECRET", "postgresql+asyncpg:///db?host=h&user=u"),
        ("postgresql+asyncpg://me:SE%40CRET@h/db?sslpassword=SECRET", "postgresql+asyncpg://me:***@h/db"),
    ],
)
def test_an_address_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert without_passwords(url) == shown


def test_what_is_no_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(UserError, match=DATABASE_VARIABLE) as error:
        without_passwords("me:SECRET@host")
    assert "SECRET" not in str(error.value)


def test_the_older_name_of_the_database_setting_is_read(tmp_path: Path) -> None:
    here = find(tmp_path, PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://u@localhost/kdgat")
    assert here.environment()[DATABASE_VARIABLE] == "postgresql+asyncpg://u@localhost/kdgat"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("KDGAT_PORT", "many", ["KDGAT_PORT", "many", "whole number"]),
        ("KDGAT_PORT", "70000", ["KDGAT_PORT", "70000", "65535"]),
        ("KDGAT_TIMEZONE", "Vienna", ["KDGAT_TIMEZONE", "Vienna", "Europe/Vienna"]),
    ],
)
def test_a_wrong_value_is_refused_with_variable_value_and_fix(
    tmp_path: Path, variable: str, value: str, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        find(tmp_path, **{variable: value})
    for word in words:
        assert word in str(error.value)


def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path) -> None:
    find(tmp_path).write()
    path = find(tmp_path).path
    path.write_text(path.read_text() + "KDGAT_NIGHTLY_CRON=0 2 * * *\n")
    with pytest.raises(UserError, match=r"0 2 .* quote"):
        find(tmp_path)


def test_nothing_that_is_started_reports_usage_to_anybody(tmp_path: Path) -> None:
    environment = find(tmp_path).environment()
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["DO_NOT_TRACK"] == "1"


def test_prefect_understands_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = find(tmp_path)
    for name, value in here.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.home == here.home / "prefect"
    assert settings.api.url == here.url
    assert settings.server.api.cors_allowed_origins.startswith(here.url.removesuffix("/api"))
    for secret in (settings.api.auth_string, settings.server.api.auth_string):
        assert secret is not None
        assert secret.get_secret_value() == here.auth_string
    assert settings.server.services.event_persister.batch_size == 1
    assert settings.server.concurrency.lease_storage.endswith("filesystem")
    vacuum = settings.server.services.db_vacuum
    assert vacuum.enabled_vacuum_types == {"events", "flow_runs", "orphans"}
    assert vacuum.retention_period.days == RETENTION_DAYS
    assert settings.flows.heartbeat_frequency == HEARTBEAT_S
    assert settings.worker.query_seconds == WORKER_POLL_S
    assert not settings.server.analytics_enabled


def test_the_machines_time_zone_has_a_name() -> None:
    assert "/" in machine_timezone() or machine_timezone() == "UTC"
