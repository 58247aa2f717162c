"""Vector BLF through python-can: frame by frame, so that a long log needs little memory."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdgat.canbus.messages import RecordingError
from kdgat.canbus.readers.detect import load_library
from kdgat.canbus.readers.limits import Growth
from kdgat.canbus.readers.packing import open_recording
from kdgat.canbus.readers.rows import FrameColumns, Rows, RowStatus

_OBJECT: Final = b"LOBJ"
_SIZE_AND_KIND: Final = struct.Struct("<II")
_SIZE_PLACE: Final = 8  # in an object
_CAN_ERRORS: Final = (2, 104)  # kinds of objects without a place for the frame, and of CAN FD
_LEAST_BYTES: Final = 16  # of an object: the header that all have
_MOST_PADDING: Final = 7  # bytes between two objects


def read_blf(path: Path, size: int) -> Iterator[Rows]:
    """Yield the frames of a log, at most `size` at once; channels are numbered from 1, as in the file.

    Where a log is cut off or damaged, what comes before is kept, and one bad row marks the cut. Raise RecordingError
    when not even its header can be read.
    """
    load_library("can", path, "a Vector BLF file, which python-can reads")
    blf = load_library("can.io.blf", path, "a Vector BLF file, which python-can reads")
    columns = FrameColumns()
    with open_recording(path) as stream:
        damage = (blf.BLFParseError, struct.error, zlib.error, EOFError, OSError, ValueError, OverflowError)
        try:
            reader = _careful_reader(blf, Growth(path))(stream)
        except RecordingError:
            raise
        except damage as error:
            raise RecordingError(path, f"is no readable Vector BLF file ({error}); export it again") from error
        # A logger that was switched off leaves a header without the size.
        damaged = reader.file_size > _size_of(path)
        num_frames = 0
        try:
            for message in reader:
                columns.append_frame(
                    message.timestamp,
                    message.arbitration_id,
                    b"" if message.is_remote_frame else bytes(message.data),
                    None if message.channel is None else str(message.channel + 1),
                    message.is_fd,
                    message.is_error_frame,
                )
                num_frames += 1
                if len(columns) >= size:
                    yield columns.take()
        except RecordingError:  # it grows too much
            raise
        except damage:
            damaged = True
    if reader.kinds and not num_frames and not damaged:
        kinds = ", ".join(map(str, sorted(reader.kinds)))
        raise RecordingError(
            path,
            f"is a log without CAN frames (its objects are of the types {kinds}); export the CAN channel's messages",
        )
    for status, count in reader.others.items():
        for _ in range(count):
            columns.append(0.0, 0, b"", None, int(status))
    if damaged or reader.is_cut:
        columns.append_damage()
    yield columns.take()


def _careful_reader(blf: ModuleType, growth: Growth) -> Any:
    """Return python-can's reader with a look at what containers hold, and at the sizes of objects in them.

    It unpacks a container whole, whatever comes out, and at an object of 0 bytes it would never end. It passes over
    frames outside of containers.
    """

    frames = {blf.CAN_MESSAGE, blf.CAN_MESSAGE2, blf.CAN_ERROR_EXT, blf.CAN_FD_MESSAGE, blf.CAN_FD_MESSAGE_64}

    class CarefulReader(blf.BLFReader):  # type: ignore[name-defined]
        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self.kinds: set[int] = set()  # of objects that were met
            self.others: Counter[RowStatus] = Counter()  # objects that it passes over

        @property
        def is_cut(self) -> bool:
            """Return whether more than padding is left: an object without its end."""
            return bool(self._tail.strip(b"\0"))

        def __iter__(self) -> Iterator[Any]:
            header, container = blf.OBJ_HEADER_BASE_STRUCT, blf.LOG_CONTAINER_STRUCT
            while head := self._next_head(header.size):
                signature, _, _, size, kind = header.unpack(head)
                if signature != _OBJECT or size < header.size:
                    raise blf.BLFParseError
                body = self.file.read(size - header.size)
                is_cut = len(body) < size - header.size
                if kind != blf.LOG_CONTAINER:  # an object of a log that packs none into containers
                    self.kinds.add(kind)
                    if is_cut:
                        raise blf.BLFParseError
                    if kind in frames:
                        yield from self._parse_container(head + body)
                        if self._tail:  # it is shorter than what it says to be
                            raise blf.BLFParseError
                    else:
                        self.others[RowStatus.ERROR_FRAME if kind in _CAN_ERRORS else RowStatus.EVENT] += 1
                    continue
                method, _ = container.unpack_from(body)
                data = body[container.size :]
                if method == blf.ZLIB_DEFLATE:
                    data = zlib.decompressobj().decompress(data, growth.left + 1)
                elif method != blf.NO_COMPRESSION:
                    continue
                growth.add(len(data))
                yield from self._parse_container(data)
                if is_cut:
                    raise blf.BLFParseError

        def _next_head(self, size: int) -> bytes:
            """Return the header of the next object, behind padding: of size % 4 bytes, or to a multiple of 8."""
            head: bytes = self.file.read(size)
            place = head.find(_OBJECT, 0, _MOST_PADDING + len(_OBJECT))
            if place > 0:
                return head[place:] + bytes(self.file.read(place))
            return head if len(head) == size else head.lstrip(b"\0")

        def _parse_container(self, data: bytes) -> Iterator[Any]:
            known, place = self._tail + data, 0
            while (place := known.find(_OBJECT, place, place + 8)) >= 0 and place + _LEAST_BYTES <= len(known):
                size, kind = _SIZE_AND_KIND.unpack_from(known, place + _SIZE_PLACE)
                self.kinds.add(kind)
                if size < _LEAST_BYTES:
                    yield from super()._parse_container(data[: max(0, place - len(self._tail))])
                    raise blf.BLFParseError
                place += size
                if kind not in frames and place <= len(known):
                    self.others[RowStatus.ERROR_FRAME if kind in _CAN_ERRORS else RowStatus.EVENT] += 1
            yield from super()._parse_container(data)

    return CarefulReader


def _size_of(path: Path) -> int:
    """Return the bytes of a log; a compressed one raises when it is cut off."""
    with path.open("rb") as stream:
        return path.stat().st_size if stream.read(4) == b"LOGG" else 1 << 62
