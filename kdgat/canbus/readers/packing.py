"""What recordings are packed in, known by its first bytes: gzip, xz, bzip2 and zip, unpacked as the bytes come."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import zlib
from collections.abc import Callable
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from kdgat.base import MIB
from kdgat.base.text import list_some
from kdgat.canbus.messages import RecordingError
from kdgat.canbus.readers.limits import Growth

NUM_HEAD_BYTES: Final = 512
"""Of a file, in which whatever marks its format is found."""
_BLOCK_BYTES: Final = 1 << 13  # of the packed file
_STEP_BYTES: Final = 1 << 12  # that come out at once
_MAX_DICTIONARY_BYTES: Final = 256 * MIB  # memory that unpacking .xz may take; `xz -9` needs 65 MiB
_MAX_LISTED: Final = 5
_LOCAL_HEADER: Final = struct.Struct("<4s2xHH4xII4xHH")  # of a zip's member: mark, flags, method, ..., bytes, lengths
_LOCAL_MARK, _DIRECTORY_MARK = b"PK\x03\x04", b"PK\x01\x02"
_ENCRYPTED, _SIZE_FOLLOWS = 0x1, 0x8
_MOST_BEHIND: Final = 28  # bytes behind a member until the mark of what follows ends
_OFFICE_PART: Final = "[Content_Types].xml"


class _Decompressor(Protocol):
    """What bz2 and lzma have; input that waits for room is kept inside."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Inflater:
    """Give zlib's decompressor the manners of the others."""

    def __init__(self, window_bits: int) -> None:
        self._inflater = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflater.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + data, max_length)


class Packing(NamedTuple):
    """A way to pack a file: its mark, what unpacks it by hand, and a decompressor where it is read here."""

    name: str
    mark: bytes
    command: str
    decompressor: Callable[[], _Decompressor] | None = None


GZIP: Final = Packing("gzip", b"\x1f\x8b", "gunzip", lambda: _Inflater(16 + zlib.MAX_WBITS))
ZIP: Final = Packing("zip", b"PK\x03\x04", "unzip", lambda: _Inflater(-zlib.MAX_WBITS))
READ: Final = (
    GZIP,
    Packing("xz", b"\xfd7zXZ\x00", "unxz", lambda: lzma.LZMADecompressor(memlimit=_MAX_DICTIONARY_BYTES)),
    Packing("lzma", b"\x5d\x00\x00", "unlzma", lambda: lzma.LZMADecompressor(memlimit=_MAX_DICTIONARY_BYTES)),
    Packing("bzip2", b"BZh", "bunzip2", bz2.BZ2Decompressor),
    ZIP,
)
"""What is unpacked here."""
_REFUSED: Final = (
    Packing("zstd", b"\x28\xb5\x2f\xfd", "unzstd"),
    Packing("lz4", b"\x04\x22\x4d\x18", "unlz4"),
    Packing("compress", b"\x1f\x9d", "uncompress"),
    Packing("7-Zip", b"7z\xbc\xaf\x27\x1c", "7z x"),
    Packing("RAR", b"Rar!\x1a\x07", "unrar x"),
    Packing("zip (in several parts)", b"PK\x07\x08", "unzip"),
    Packing("zip (with nothing in it)", b"PK\x05\x06", "unzip"),
)
_TAR_MARK, _TAR_PLACE = b"ustar", 257


def find_packing(path: Path, head: bytes, outer: Packing | None = None) -> Packing | None:
    """Return what the first bytes say that a file is packed in, None for nothing; RecordingError for what is not read.

    `outer` is what those bytes came out of: only one packing is taken off.
    """
    found = next((packing for packing in (*READ, *_REFUSED) if head.startswith(packing.mark)), None)
    if head[_TAR_PLACE:].startswith(_TAR_MARK):
        raise RecordingError(path, "is a tar archive: unpack it by `tar xf`, and give the recordings in it")
    if found is None:
        return None
    if outer is not None:
        raise RecordingError(path, f"is {found.name} inside {outer.name}; unpack it by `{outer.command}` first")
    if found.decompressor is None:
        raise RecordingError(
            path, f"is packed by {found.name}, which is not read; unpack it by `{found.command}` first"
        )
    return found


def packing_of(path: Path) -> Packing | None:
    """Return what a file is packed in, as `find_packing`."""
    with path.open("rb") as file:
        return find_packing(path, file.read(NUM_HEAD_BYTES))


def open_recording(path: Path) -> BufferedReader:
    """Open a file for reading its bytes, unpacked.

    Reading raises RecordingError where what comes out is more than a log of that size holds, OSError or EOFError
    where it is damaged or cut off.
    """
    packing = packing_of(path)
    if packing is None:
        return path.open("rb")
    growth = Growth(path)
    file = path.open("rb", buffering=0)
    try:
        return BufferedReader(_open_zip(path, file, growth) if packing is ZIP else Unpacked(file, packing, growth), MIB)
    except BaseException:
        file.close()
        raise


def read_head(stream: BufferedReader, num_bytes: int) -> bytes:
    """Read the first bytes, or those before the damage; OSError or EOFError where there are none."""
    head = b""
    try:
        while len(head) < num_bytes and (block := stream.read1(num_bytes - len(head))):
            head += block
    except (OSError, EOFError):
        if not head:
            raise
    return head


class Unpacked(RawIOBase):
    """What comes out of a packed file, or of a stream that has nothing at times, as far as it may grow.

    Damage of any kind is an OSError, the end before the end an EOFError.
    """

    def __init__(self, file: RawIOBase | Any, packing: Packing, growth: Growth) -> None:
        """Begin where the file stands."""
        assert packing.decompressor is not None
        self._file = file
        self._begin = file.tell() if file.seekable() else None
        self._make = packing.decompressor
        self._growth = growth
        self._restart()

    def _restart(self) -> None:
        self._decompressor = self._make()
        self._place = 0
        self._damage: OSError | EOFError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._begin is not None

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        """Return to the beginning: a reader that has looked at it needs no more."""
        if (place, whence) != (0, os.SEEK_SET) or self._begin is None:
            raise OSError("what is unpacked is read in order")
        self._file.seek(self._begin)
        self._restart()
        return 0

    def readinto(self, buffer: Any, /) -> int | None:
        view = memoryview(buffer)
        data = self._gather(len(view))
        if data is None:
            return None
        self._growth.add(len(data))
        self._place += len(data)
        view[: len(data)] = data
        return len(data)

    def _gather(self, size: int) -> bytes | None:
        """Take one step after the other, each a small one: of the step that meets damage, everything is lost."""
        if self._damage is not None:
            raise self._damage
        parts: list[bytes] = []
        num_bytes, part = 0, None
        try:
            while num_bytes < size and (part := self._step(min(_STEP_BYTES, size - num_bytes))):
                parts.append(part)
                num_bytes += len(part)
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            self._damage = error if isinstance(error, EOFError) else OSError(str(error))
            if not parts:
                raise self._damage from error
        return b"".join(parts) or part

    def _step(self, size: int) -> bytes | None:
        """Return the next bytes, none at the end; None where the file has nothing yet."""
        while True:
            if self._decompressor.eof:
                if not self._has_next():
                    return self._end()
                if (data := self._next_input()) is None or not data:
                    return data
                self._decompressor = self._make()
            elif not self._decompressor.needs_input:
                data = b""
            elif (data := self._file.read(_BLOCK_BYTES)) is None:
                return None
            elif not data:
                if rest := self._decompressor.decompress(b"", size):
                    return rest
                raise EOFError("it ends before its end")
            if out := self._decompressor.decompress(data, size):
                return out

    def _has_next(self) -> bool:
        return True

    def _end(self) -> bytes | None:
        return b""

    def _next_input(self) -> bytes | None:
        """Return the beginning of the next member behind the one that has ended; zeros fill up blocks."""
        data: bytes | None = self._decompressor.unused_data
        while data is not None and not data.lstrip(b"\0"):
            if not (data := self._file.read(_BLOCK_BYTES)):
                return data
        return data if data is None else data.lstrip(b"\0")

    def close(self) -> None:
        self._file.close()
        super().close()


class _Stored:
    """Give bytes that a zip holds as they are the manners of what is compressed."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self._waiting = b""
        self.unused_data = b""

    @property
    def eof(self) -> bool:
        return not self._left

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    def decompress(self, data: bytes, max_length: int) -> bytes:
        data = self._waiting + data
        out = data[: min(max_length, self._left)]
        self._left -= len(out)
        self._waiting = data[len(out) :]
        if not self._left:
            self.unused_data, self._waiting = self._waiting, b""
        return out


class ZipMember(Unpacked):
    """The member of a zip whose header comes next; `info` is what its directory says, where there is one to ask."""

    def __init__(
        self, path: Path, file: RawIOBase | Any, growth: Growth, info: ZipInfo | None = None, *, is_cut: bool = False
    ) -> None:
        """Read the header; RecordingError for a member that is not read. One that is cut off has a damaged end."""
        self._path = path
        self._is_cut = is_cut
        self._has_directory = info is not None
        while True:
            name, flags, method, crc, size = _read_member(file)
            if info is not None or not _is_beside(name) or flags & _SIZE_FOLLOWS:
                break
            _read_exactly(file, size)
        if flags & _ENCRYPTED:
            raise RecordingError(path, "is an encrypted zip; unpack it by `unzip`, with its password, first")
        if info is not None:
            crc, size = info.CRC, info.compress_size
        self._crc = None if info is None and flags & _SIZE_FOLLOWS else crc
        self._seen_crc = 0
        if method == ZIP_STORED and (info is not None or not flags & _SIZE_FOLLOWS):
            packing = ZIP._replace(decompressor=lambda: _Stored(size))
        elif method == ZIP_DEFLATED:
            packing = ZIP
        else:
            raise RecordingError(path, f"is a zip of method {method}, which is not read; unpack it by `unzip` first")
        super().__init__(file, packing, growth)

    def _restart(self) -> None:
        super()._restart()
        self._seen_crc = 0

    def _step(self, size: int) -> bytes | None:
        data = super()._step(size)
        self._seen_crc = zlib.crc32(data or b"", self._seen_crc)
        return data

    def _has_next(self) -> bool:
        return False

    def _end(self) -> bytes | None:
        if self._crc is not None and self._crc != self._seen_crc:
            raise OSError("its checksum is another one")
        if self._has_directory:
            return b""
        # Sizes may stand between the member and what follows: the directory, if that was all.
        behind = self._decompressor.unused_data
        while len(behind) < NUM_HEAD_BYTES and (block := self._file.read(_BLOCK_BYTES)) != b"":
            behind += block or b""
        place = behind.find(_LOCAL_MARK, 0, _MOST_BEHIND)
        if place >= 0 and not _is_beside(_read_member(BytesIO(behind[place:]))[0]):
            raise RecordingError(self._path, "is a zip of several members; unpack it by `unzip`, and give one of them")
        if self._is_cut or (place < 0 and _DIRECTORY_MARK not in behind[:_MOST_BEHIND]):
            raise EOFError("it ends before its end")
        self._has_directory = True
        return b""


def _read_member(file: RawIOBase | BytesIO | Any) -> tuple[str, int, int, int, int]:
    """Read the header of a zip's member: name, flags, method, checksum, and bytes that follow."""
    header = _LOCAL_HEADER.unpack(_read_exactly(file, _LOCAL_HEADER.size))
    mark, flags, method, crc, size, name_bytes, more_bytes = header
    if mark != _LOCAL_MARK:
        raise OSError("a member of the zip has no header")
    name = _read_exactly(file, name_bytes + more_bytes)[:name_bytes].decode("utf-8", "replace")
    return name, flags, method, crc, size


def _read_exactly(file: RawIOBase | Any, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        block = file.read(num_bytes - len(data))
        if block == b"":
            raise EOFError("it ends before its end")
        data += block or b""
    return data


def _open_zip(path: Path, file: RawIOBase | Any, growth: Growth) -> Unpacked:
    """Open the one member of a zip; what is cut off has lost its directory, and is read as far as it goes."""
    try:
        with ZipFile(path) as archive:
            infos = archive.infolist()
    except (BadZipFile, OSError, NotImplementedError, ValueError, struct.error):
        return ZipMember(path, file, growth, is_cut=True)
    if any(info.filename == _OFFICE_PART for info in infos):
        raise RecordingError(path, "is a document of an office program; save its table as CSV")
    members = [info for info in infos if not _is_beside(info.filename)]
    if len(members) != 1:
        names = list_some([repr(info.filename) for info in members], _MAX_LISTED)
        held = f"{len(members)} members: {names}" if members else "no file"
        raise RecordingError(path, f"is a zip of {held}; unpack it by `unzip`, and give the recordings one by one")
    file.seek(members[0].header_offset)
    return ZipMember(path, file, growth, members[0])


def _is_beside(name: str) -> bool:
    """Return whether a member is a folder, or what a file manager has put beside the files."""
    parts = name.split("/")
    return not parts[-1] or parts[0] == "__MACOSX" or parts[-1].startswith(".") or parts[-1] == "Thumbs.db"
