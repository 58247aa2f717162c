"""Where the database of an embedded server lies while it is used, and what is kept of it."""

import contextlib
import logging
import shutil
import sqlite3
from pathlib import Path

import pytest

import flows.embedded.database as module
from flows.embedded.database import EmbeddedDatabase


@pytest.fixture
def database(tmp_path: Path) -> EmbeddedDatabase:
    (tmp_path / "local").mkdir()
    return EmbeddedDatabase(tmp_path / "local", tmp_path / "out" / "prefect" / "prefect.db")


def write(path: Path, name: str) -> sqlite3.Connection:
    """Write as Prefect does, and stay connected."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("create table if not exists flow (name text)")
    connection.execute("insert into flow values (?)", (name,))
    connection.commit()
    return connection


def names(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [name for (name,) in connection.execute("select name from flow")]


def test_what_is_kept_is_there_again_and_is_one_file_that_needs_no_log_beside_it(database: EmbeddedDatabase) -> None:
    database.fetch()
    for name in ("first", "second"):
        with contextlib.closing(write(database.path, name)):
            database.keep()
    kept = database.kept
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    with contextlib.closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    shutil.rmtree(database.folder)
    database.folder.mkdir()
    database.fetch()
    assert names(database.path) == ["first", "second"]


def test_what_a_killed_command_of_before_left_beside_its_file_is_taken_over_once(database: EmbeddedDatabase) -> None:
    database.kept.parent.mkdir(parents=True)
    with contextlib.closing(write(database.kept, "earlier")):
        database.fetch()
        left = {path.name: path.read_bytes() for path in database.kept.parent.iterdir()}
    assert len(left) == 3
    for name, content in left.items():
        (database.kept.parent / name).write_bytes(content)
    with contextlib.closing(write(database.path, "later")):
        database.keep()
    assert [path.name for path in database.kept.parent.iterdir()] == [database.kept.name]
    assert names(database.kept) == ["earlier", "later"]


def test_one_that_has_grown_too_large_is_set_aside(database: EmbeddedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.kept.parent.mkdir(parents=True)
    write(database.kept, "earlier").close()
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", database.kept.stat().st_size - 1)
    database.fetch()
    assert not database.path.exists()
    assert names(database.kept.with_name("prefect-before.db")) == ["earlier"]


def test_what_cannot_be_kept_or_fetched_is_a_warning(
    database: EmbeddedDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    database.keep()  # there is nothing
    write(database.path, "now").close()
    database.kept.parent.mkdir(parents=True)
    database.kept.mkdir()  # no file can take its place
    database.keep()
    assert str(database.kept) in caplog.text
    database.kept.rmdir()
    database.keep()
    assert names(database.kept) == ["now"]
    caplog.clear()
    database.path.unlink()
    database.path.mkdir()
    database.fetch()
    assert str(database.kept) in caplog.text
