"""MF4 with bus logging through asammdf: whole groups of frames as arrays.

asammdf's compiled part can take its process with it when a file is damaged, prints what it thinks of one, and follows
links that lead back for ever. It works in a process of its own (`python -m` this module) with limits of memory and
processor time, which costs a second, so that a bad file is an error and no more.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES, RecordingError
from kdgat.canbus.readers.detect import load_library
from kdgat.canbus.readers.limits import LEAST_S, limit_process, most_time
from kdgat.canbus.readers.rows import MAX_CHANNELS, Rows, RowStatus, join_rows

_REFUSED = 3  # exit status of the process for a file that is no use; it prints why
_COLUMNS = ("timestamp", "identifier", "payload", "length", "label", "status")
_KINDS = ("CAN_DataFrame", "CAN_RemoteFrame", "CAN_ErrorFrame", "CAN_OverloadFrame")


def read_mf4(path: Path) -> Rows:
    """Read the frames of all groups of bus events, in the order of their timestamps, which are absolute.

    Raise RecordingError for a measurement without CAN frames, and for a file that cannot be read.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        columns_path = Path(folder) / "columns.npz"
        limit_s = most_time(path.stat().st_size, LEAST_S)
        command = [sys.executable, "-P", "-m", __name__, str(path), str(columns_path), str(limit_s)]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answer.returncode == _REFUSED:
            raise RecordingError(path, answer.stdout.strip())
        if answer.returncode != 0:
            if answer.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                reason = f"asammdf found no end in {limit_s} s of processor time, or was killed"
                raise RecordingError(path, f"is no readable MF4 file ({reason}); export it again")
            said = (answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"])[-1]
            if answer.returncode < 0:  # what faulthandler prints, where it is on, ends with a list of modules
                said = f"it crashed, signal {-answer.returncode}"
            raise RecordingError(path, f"is no readable MF4 file (asammdf failed: {said}); export it again")
        with np.load(columns_path) as columns:
            rows = Rows(
                timestamp=columns["timestamp"],
                identifier=columns["identifier"],
                payload=columns["payload"],
                length=columns["length"],
                label=columns["label"],
                status=columns["status"],
                labelled=False,
                line_of=lambda rows: rows + 1,  # there are no lines: the how many-th frame in time
                channels=tuple(columns["channels"].tolist()),
            )
            if rows.channels:
                rows.channel = columns["channel"]
            return rows


def main(path: Path, columns_path: Path, limit_s: int) -> int:
    """Read a file and write its rows for `read_mf4`; return the exit status. SIGXCPU ends it at the limit."""
    limits = limit_process(path.stat().st_size, limit_s)
    try:
        rows = _read_here(path)
    except MemoryError:
        print(f"takes more than {limits}, which no log of its size does; export it again")
        return _REFUSED
    except RecordingError as error:
        print(error.problem)
        return _REFUSED
    columns = {name: getattr(rows, name) for name in _COLUMNS}
    channel = np.zeros(0, np.uint8) if rows.channel is None else rows.channel
    np.savez(columns_path, channel=channel, channels=np.array(rows.channels, dtype=np.str_), **columns)
    return 0


def _read_here(path: Path) -> Rows:
    asammdf = load_library("asammdf", path, "an MF4 file, which asammdf reads")
    try:
        with asammdf.MDF(path) as measurement:
            if measurement.version < "4":
                raise RecordingError(path, f"is MDF {measurement.version}, which holds no frames; export it as MF4")
            groups = list(_read_groups(measurement, _start_s(measurement.header.start_time)))
    except (RecordingError, MemoryError):
        raise
    except Exception as error:  # asammdf raises whatever a damaged block leads it to
        raise RecordingError(
            path, f"is no readable MF4 file ({type(error).__name__}: {error}); export it again"
        ) from error
    if not groups:
        raise RecordingError(
            path,
            "is a measurement without CAN frames (no CAN_DataFrame in it); export the bus events, not decoded signals",
        )
    return _in_order_of_time(groups)


def _start_s(start: datetime) -> float:
    """Return seconds since 1970; what is the time of some place is read as UTC, wherever it is read."""
    return (start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp()


def _read_groups(measurement: Any, start_s: float) -> Iterator[Rows]:
    for index, group in enumerate(measurement.groups):
        names = {channel.name for channel in group.channels}
        kind = next((kind for kind in _KINDS if kind in names), None)
        if kind is None or group.channel_group.cycles_nr == 0:
            continue
        frames = measurement.get(kind, index, raw=False)
        yield _rows(kind, frames.timestamps + start_s, frames.samples)


def _rows(kind: str, timestamp: NDArray[np.float64], samples: NDArray[Any]) -> Rows:
    fields = {name.rpartition(".")[2]: name for name in samples.dtype.names or ()}
    num_frames = len(timestamp)

    def column(field: str) -> NDArray[np.int64]:
        return samples[fields[field]].astype(np.int64) if field in fields else np.zeros(num_frames, np.int64)

    payload = np.zeros((num_frames, MAX_PAYLOAD_BYTES), np.uint8)
    length = np.zeros(num_frames, np.int64)
    status = np.zeros(num_frames, np.uint8)
    if kind == "CAN_ErrorFrame":
        status[:] = RowStatus.ERROR_FRAME
    elif kind == "CAN_OverloadFrame":
        status[:] = RowStatus.EVENT
    elif kind == "CAN_DataFrame":
        data = samples[fields["DataBytes"]].reshape(num_frames, -1)[:, :MAX_PAYLOAD_BYTES]
        length = column("DataLength" if "DataLength" in fields else "DLC")
        status[length > MAX_PAYLOAD_BYTES] = RowStatus.PAYLOAD_LONG
        status[column("EDL") != 0] = RowStatus.CAN_FD
        length = np.minimum(length, MAX_PAYLOAD_BYTES)
        payload[:, : data.shape[1]] = data
        payload[np.arange(MAX_PAYLOAD_BYTES) >= length[:, None]] = 0
    channel: NDArray[np.uint8] | None = None
    channels: tuple[str, ...] = ()
    if "BusChannel" in fields:
        numbers, index = np.unique(column("BusChannel"), return_inverse=True)
        channels = tuple(str(number) for number in numbers)[:MAX_CHANNELS]
        channel = np.minimum(index, MAX_CHANNELS - 1).astype(np.uint8)
    return Rows(
        timestamp=timestamp,
        identifier=(column("ID") & MAX_IDENTIFIER).astype(np.uint32),
        payload=payload,
        length=length.astype(np.uint8),
        label=np.zeros(num_frames, np.uint8),
        status=status,
        labelled=False,
        line_of=lambda rows: rows + 1,
        channel=channel,
        channels=channels,
    )


def _in_order_of_time(groups: list[Rows]) -> Rows:
    channels = tuple(dict.fromkeys(name for rows in groups for name in rows.channels))
    for rows in groups:
        if rows.channel is not None:
            rows.channel = np.array([channels.index(name) for name in rows.channels], np.uint8)[rows.channel]
        rows.channels = channels
    joined = join_rows(groups)
    order = np.argsort(joined.timestamp, kind="stable")
    for name in _COLUMNS:
        setattr(joined, name, getattr(joined, name)[order])
    if joined.channel is not None:
        joined.channel = joined.channel[order]
    return joined


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
