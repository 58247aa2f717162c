"""Recordings of CAN traffic as files, read, looked at and written: the format is found from the file itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kdgat.base import sync_to_disk
from kdgat.base.files import replacing
from kdgat.canbus.conversion import Conversion
from kdgat.canbus.labelling import label_by_surroundings, labels_beside
from kdgat.canbus.messages import BadRow, Messages, ReadLimits, ReadOptions, RecordingError, list_passed_over
from kdgat.canbus.names import recording_name
from kdgat.canbus.pipes import as_file, is_pipe, read_pipe
from kdgat.canbus.readers.detect import FileFormat, find_format, no_message, require_table
from kdgat.canbus.readers.labels import refuse_unknown_words
from kdgat.canbus.readers.limits import refuse_holes
from kdgat.canbus.readers.packing import open_recording, packing_of, read_head
from kdgat.canbus.readers.rows import (
    REASONS,
    Rows,
    RowStatus,
    join_rows,
    judge_timestamps,
    select_channel,
    take_good_rows,
)

if TYPE_CHECKING:
    from kdgat.canbus.readers.parquet import DataframeBackend
    from kdgat.canbus.readers.text import Layout, LineParser

NUM_FRAMES_AT_ONCE = 1 << 16
"""Frames that a reader of binary logs returns at once."""
_UNPACKED_BLOCK_BYTES = 1 << 20
_BYTES_PER_MESSAGE = 40  # of a line, roughly: how much is read for one chunk
LEAST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 1 << 16, 1 << 22
_MAX_LINE_BYTES = 1 << 20  # without an end of line for that long, it is none
COUNTED_BYTES: Final = 1 << 20
"""Lines of longer files are not counted."""


def read_recording(
    path: Path | str,
    *,
    scenario: str | None = None,
    limits: ReadLimits | None = None,
    channel: str | int | None = None,
    options: ReadOptions | None = None,
    backend: DataframeBackend | None = None,
) -> Messages:
    """Read one recording of any known format, messages in file order.

    A log without labels gets those that are beside it (`<name>.attacks.csv`, ROAD's `capture_metadata.json`).

    Args:
        path: a file; the format is found from its content. A pipe, as standard input (`-`), is read to its end.
        scenario: replaces the one in the path.
        limits: how many bad rows are dropped and counted; more refuse the file.
        channel: the interface or the number of the channel to take, where the file names several.
        options: what it does not say itself, as the unit of its stamps.
        backend: may have Parquet read on a GPU, to the same bits.

    Raises:
        RecordingError: a ValueError that names the file when it has another format, no valid row, more bad rows than
            `limits` allows, or several channels and none is chosen.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "drive.log")
    ...     _ = path.write_text("(1436509052.249713) can0 123#0102")  # a line of candump
    ...     messages = read_recording(path)
    >>> len(messages), hex(messages.identifier[0]), messages.payload[0, : messages.length[0]].tolist()
    (1, '0x123', [1, 2])
    """
    path = as_file(Path(path))
    piped = is_pipe(path)
    if not piped:
        if not path.is_file():
            raise RecordingError(path, f"is {'a folder' if path.is_dir() else 'no file'}; name one recording")
        refuse_holes(path)
    path_scenario, name = recording_name(path)
    limits, options = limits or ReadLimits(), options or ReadOptions()
    found = FileFormat.TEXT if piped else find_format(path)
    rows = _read_rows(path, found, backend, options)
    conversion = Conversion(path, options)
    conversion.convert_stamps(rows)
    select_channel(rows, path, None if channel is None else str(channel))
    refuse_unknown_words(path, rows.unknown_labels)
    judge_timestamps(rows)
    messages = take_good_rows(rows, name, path_scenario if scenario is None else scenario, limits.max_listed_bad_rows)
    refuse_damage(path, len(messages), messages.num_bad_rows, messages.bad_rows, messages.passed_over, limits)
    messages = conversion.drop_echoes(messages)
    if found is FileFormat.PARQUET:
        from kdgat.canbus.readers.parquet import read_campaigns

        messages.campaigns = read_campaigns(path)
    if not messages.labelled:
        label_by_surroundings(messages, path, options)
    return messages


def refuse_damage(
    path: Path, num_good: int, num_bad: int, bad_rows: list[BadRow], passed_over: Counter[str], limits: ReadLimits
) -> None:
    """Raise RecordingError when no row is good or too many are bad."""
    num_rows = num_good + num_bad
    if num_rows == 0:
        if others := ", ".join(list_passed_over(passed_over)):
            raise RecordingError(
                path,
                f"holds no message of classic CAN, only {others}: those are not read; record or export classic CAN "
                "frames",
            )
        raise no_message(path)
    if num_good == 0:
        line, reason = bad_rows[0].line, bad_rows[0].reason
        fix = "check that its format is one that `kdgat data import --help` lists"
        if reason == REASONS[RowStatus.DAMAGED]:
            fix = "copy or export it again"
        raise RecordingError(path, f"none of its {num_rows} rows is a CAN message (line {line}: {reason}); {fix}")
    if num_bad > limits.max_bad_fraction * num_rows:
        examples = "; ".join(f"line {row.line}: {row.reason}" for row in bad_rows[:3])
        raise RecordingError(
            path,
            f"{num_bad} of {num_rows} rows are bad ({num_bad / num_rows:.2%}, the limit is "
            f"{limits.max_bad_fraction:.2%}): {examples}; repair the file or raise data.max_bad_fraction "
            "(--max-bad-fraction)",
        )


def _read_rows(path: Path, found: FileFormat, backend: DataframeBackend | None, options: ReadOptions) -> Rows:
    if found is not FileFormat.TEXT:
        return join_rows(list(read_portions(path, found, NUM_FRAMES_AT_ONCE, options, backend)))
    from kdgat.canbus.readers.text import read_text

    piped = is_pipe(path)
    if not piped and packing_of(path) is None:
        return read_text(path, options=options)
    content, damaged = read_pipe(path) if piped else _unpack(path)
    return read_text(path, np.frombuffer(content, np.uint8), damaged=damaged, options=options)


def read_portions(
    path: Path, found: FileFormat, size: int, options: ReadOptions, backend: DataframeBackend | None = None
) -> Iterator[Rows]:
    """Yield the rows of a recording of a format in order: Parquet and MF4 all at once, of others about `size`."""
    # Readers are imported where they are needed: polars, or numba's kernels, alone take as long as reading small files.
    if found is not FileFormat.TEXT:
        require_table(path, options, f"a {found} file")
    match found:
        case FileFormat.PARQUET:
            from kdgat.canbus.readers.parquet import read_parquet

            yield read_parquet(path, backend)
        case FileFormat.BLF:
            from kdgat.canbus.readers.blf import read_blf

            yield from read_blf(path, size)
        case FileFormat.PCAP:
            from kdgat.canbus.readers.pcap import read_pcap

            yield from read_pcap(path, size)
        case FileFormat.MF4:
            from kdgat.canbus.readers.mf4 import read_mf4

            yield read_mf4(path)
        case FileFormat.SQLITE:
            from kdgat.canbus.readers.tools.sqlite import read_sqlite

            yield from read_sqlite(path, size)
        case FileFormat.TEXT:
            yield from _text_portions(path, size, options)


def _text_portions(path: Path, size: int, options: ReadOptions) -> Iterator[Rows]:
    from kdgat.canbus.readers.text import SNIFFED_BYTES, LineParser, find_start

    block_bytes = min(max(size * _BYTES_PER_MESSAGE, LEAST_BLOCK_BYTES), _LARGEST_BLOCK_BYTES)
    damaged = False
    parser: LineParser | None = None
    pending = b""
    with open_recording(path) as stream:
        while True:
            try:
                block = stream.read1(block_bytes)
            except (EOFError, OSError):  # a compressed log that is cut off
                block, damaged = b"", True
                pending = pending[: pending.rfind(b"\n") + 1]
            pending += block
            if block and len(pending) < (SNIFFED_BYTES if parser is None else block_bytes):
                continue
            start = 0
            if parser is None:
                is_whole = len(pending) <= SNIFFED_BYTES
                layout, start = find_start(path, pending[:SNIFFED_BYTES], is_whole=is_whole, options=options)
                parser = LineParser(layout)
            end = end_of_lines(pending, parser.layout.newline) if block else len(pending)
            if end > start:
                yield parser.parse(np.frombuffer(pending, np.uint8, end), start)
                pending = pending[end:]
            if not block:
                break
    if damaged:
        yield parser.damage()


def end_of_lines(content: bytes | bytearray, newline: str = "\n") -> int:
    """Return where the last whole line ends; what has no end for too long is taken for a line."""
    end = content.rfind(newline.encode()) + 1
    return len(content) if not end and len(content) > _MAX_LINE_BYTES else end


def _unpack(path: Path) -> tuple[bytearray, bool]:
    """Return what a compressed log holds, and whether it is cut off: then the whole lines that can be read."""
    content = bytearray()
    with open_recording(path) as stream:
        try:
            while block := stream.read1(_UNPACKED_BLOCK_BYTES):
                content += block
        except (EOFError, OSError):
            del content[content.rfind(b"\n") + 1 :]
            return content, True
    return content, False


def has_labels(path: Path, scenario: str) -> bool:
    """Return whether a recording has labels, or something beside it or its name tells them; its head is read alone.

    Raises:
        RecordingError: as `check_head`.
    """
    match find_format(path):
        case FileFormat.PARQUET:
            from kdgat.canbus.readers.parquet import has_label_column

            held = has_label_column(path)
        case FileFormat.TEXT:
            held = _find_layout(path).labelled
        case _:
            held = False
    return held or labels_beside(path, scenario) is not None


def _find_layout(path: Path) -> Layout:
    from kdgat.canbus.readers.text import SNIFFED_BYTES, find_start

    with open_recording(path) as stream:
        head = read_head(stream, SNIFFED_BYTES)
    is_whole = packing_of(path) is None and len(head) == path.stat().st_size
    return find_start(path, head, is_whole=is_whole)[0]


def check_head(path: Path) -> int | None:
    """Look at the beginning of a recording, and at the end of a Parquet file, which has its columns there.

    Returns:
        how many messages it has at most; None where that takes reading it.

    Raises:
        RecordingError: if it is empty, cut off, of no known format or without the columns of a recording.
    """
    match find_format(path):
        case FileFormat.PARQUET:
            from kdgat.canbus.readers.parquet import check_columns

            return check_columns(path)
        case FileFormat.TEXT:
            _find_layout(path)
            if packing_of(path) is not None or path.stat().st_size > COUNTED_BYTES:
                return None
            content = path.read_bytes()
            return max(content.count(b"\n"), content.count(b"\r")) + 1
        case _:
            return None


def write_recording(path: Path | str, messages: Messages | Iterable[Messages]) -> None:
    """Write one recording, also one in chunks, as Parquet in the dataset layout, all of it or nothing.

    Columns timestamp (s), id, data_field (hex text), label, source_file; no label column for an unlabelled one. Folders
    are made where they are missing; OSError where they cannot be.

    >>> import tempfile
    >>> from kdgat.canbus import make_vehicle, simulate
    >>> messages = simulate(make_vehicle(5), 2.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_recording(Path(folder, "test_a__drive.parquet"), messages)
    ...     again = read_recording(Path(folder, "test_a__drive.parquet"))
    >>> again.content_hash() == messages.content_hash(), again.scenario, again.name
    (True, 'test_a', 'drive')
    """
    from kdgat.canbus.readers.parquet import write_parquet

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        write_parquet(temporary, messages)  # whom it may be read by, the umask says
        sync_to_disk(temporary)
