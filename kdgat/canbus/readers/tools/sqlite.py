"""python-can's database: a table of messages in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kdgat.canbus.messages import RecordingError
from kdgat.canbus.readers.rows import FrameColumns, Rows
from kdgat.canbus.readers.tools.frames import judge_frame

_COLUMNS = ("ts", "arbitration_id", "remote", "error", "dlc", "data")


def read_sqlite(path: Path, size: int) -> Iterator[Rows]:
    """Yield the rows of the table in its order, about `size` at once; RecordingError where there is none."""
    columns = FrameColumns()
    has_begun = False
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as database:
            table = _find_table(path, database)
            for values in database.execute(f'SELECT {", ".join(_COLUMNS)} FROM "{table}" ORDER BY rowid'):
                has_begun = True
                _append(columns, *values)
                if len(columns) >= size:
                    yield columns.take()
    except sqlite3.Error as error:
        if not has_begun:
            raise RecordingError(path, f"is no SQLite database that can be read ({error}); copy it again") from error
        columns.append_damage()
    yield columns.take()


def _find_table(path: Path, database: sqlite3.Connection) -> str:
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for table in sorted(tables, key=lambda name: name != "messages"):
        names = {row[1] for row in database.execute("SELECT * FROM pragma_table_info(?)", (table,))}
        if set(_COLUMNS) <= names and '"' not in table:
            return str(table)
    raise RecordingError(
        path,
        f"is an SQLite database without a table of messages as python-can writes it ({', '.join(_COLUMNS)}); it has "
        f"the tables {', '.join(tables) or 'none'}; export the messages, for instance as CSV",
    )


def _append(
    columns: FrameColumns, timestamp: Any, identifier: Any, is_remote: Any, is_error: Any, length: Any, data: Any
) -> None:
    frame = judge_frame(
        timestamp if isinstance(timestamp, int | float) else float("nan"),
        identifier if isinstance(identifier, int) else -1,
        data if isinstance(data, bytes) else b"",
        str(length),
        is_remote=bool(is_remote),
        is_error=bool(is_error),
    )
    columns.append(frame.timestamp, frame.identifier, frame.data, frame.channel, int(frame.status))
