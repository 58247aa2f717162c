"""Packed recordings: the same messages whatever the packing and the name; damage costs what lies behind it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, RecordingError, read_recording, stream_recording
from kdgat.canbus.readers import limits
from tests.canbus.log_files import WRITERS
from tests.canbus.packed_files import BLOCK, LENIENT, PACK, str_or_nothing, zipped
from tests.canbus.recording_files import assert_same_traffic, joined, random_messages, write_text


@pytest.fixture(scope="module")
def written() -> Messages:
    return random_messages(5000)


@pytest.fixture(scope="module")
def text(written: Messages, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_text(tmp_path_factory.mktemp("text") / "a.log", written, "candump.log").read_bytes()


@pytest.mark.parametrize("how", PACK)
def test_packed_log_is_the_log_under_any_name(tmp_path: Path, how: str, written: Messages, text: bytes) -> None:
    for name in ("drive.log.gz", "can.log_2022-08-27T111103_000.xz", "can.log.1", "no suffix"):
        path = tmp_path / name
        path.write_bytes(PACK[how](text))
        assert_same_traffic(read_recording(path), written)
    assert_same_traffic(joined(list(stream_recording(path, 700))), written)


@pytest.mark.parametrize("how", PACK)
@pytest.mark.parametrize("name", ["a.blf", "a.pcap", "a.pcapng"])
def test_packed_binary_log_is_the_log(tmp_path: Path, how: str, name: str) -> None:
    plain = WRITERS[name][0](tmp_path / name, random_messages(300))
    path = tmp_path / "packed"
    path.write_bytes(PACK[how](plain.read_bytes()))
    assert_same_traffic(read_recording(path), read_recording(plain))


DAMAGE = [
    *((how, damage) for how in PACK for damage in ("cut", "without its last bytes")),
    *((how, "in the middle") for how in ("gzip", "xz", "bzip2")),  # of others all is one piece
]


@pytest.mark.parametrize(("how", "damage"), DAMAGE)
def test_damage_keeps_what_stands_before_and_is_one_bad_row(
    tmp_path: Path, how: str, damage: str, written: Messages, text: bytes
) -> None:
    content = PACK[how](text)
    path = tmp_path / "a.log"
    if damage == "cut":
        path.write_bytes(content[: len(content) * 2 // 3])
    elif damage == "without its last bytes":
        path.write_bytes(content.rstrip(b"\0")[:-5])
    else:  # between two of the pieces, of which each is packed for itself
        path.write_bytes(PACK[how](text[: 4 * BLOCK]) + b"damaged" + PACK[how](text[4 * BLOCK :]))
    read = read_recording(path, limits=LENIENT)
    assert 2000 < len(read) <= 5000
    assert read.bad_rows[-1].reason == "the file is cut off or damaged from here on"
    assert read.num_bad_rows == 1
    np.testing.assert_array_equal(read.payload[:2000], written.payload[:2000])
    stream = stream_recording(path, limits=LENIENT)
    assert sum(len(chunk) for chunk in stream) == len(read)
    assert stream.status.bad_rows == read.bad_rows


@pytest.mark.parametrize("how", [how for how in PACK if how != "stored"])
def test_what_unpacks_to_nearly_nothing_but_repetition_is_refused(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAST_UNPACKED_BYTES", 1 << 17)
    data = b"(1.000000) can0 123#0102030405060708\n" * 200_000
    path = tmp_path / "a"
    path.write_bytes(lzma.compress(data) if how == "xz" else zipped({"a": data}) if how == "zip" else _whole(how, data))
    for read in (read_recording, lambda path: list(stream_recording(path))):
        with pytest.raises(RecordingError, match="no log is compressed more than 100 times"):
            read(path)


def _whole(how: str, data: bytes) -> bytes:
    return {"gzip": gzip.compress, "bzip2": bz2.compress, "lzma": PACK["lzma"]}[how](data)


def encrypted() -> bytes:
    """Mark a zip as encrypted in its directory and in its member."""
    content = bytearray(zipped({"a.log": b"x"}))
    content[6] |= 1
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(gzip.compress(b"x")), "is gzip inside gzip; unpack it by `gunzip` first"),
        (lzma.compress(gzip.compress(b"x")), "is gzip inside xz; unpack it by `unxz` first"),
        (bz2.compress(b"PAR1" + bytes(99)), "is a Parquet file inside bzip2; unpack it by `bunzip2` first"),
        (zipped({"a": b"MDF     " + bytes(99)}), "is a MF4 file inside zip; unpack it by `unzip` first"),
        (zipped({"a.log": b"1", "b.log": b"2"}), "is a zip of 2 members: 'a.log', 'b.log'; unpack it by `unzip`"),
        (zipped({}), "is packed by zip (with nothing in it), which is not read; unpack it by `unzip` first"),
        (zipped({"a": b"1"}, zipfile.ZIP_LZMA), "is a zip of method 14, which is not read; unpack it by `unzip`"),
        (zipped({"[Content_Types].xml": b"1", "xl/a": b"2"}), "a document of an office program; save its table as CSV"),
        (encrypted(), "is an encrypted zip; unpack it by `unzip`, with its password, first"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "is packed by zstd, which is not read; unpack it by `unzstd` first"),
        (bytes(257) + b"ustar" + bytes(250), "is a tar archive: unpack it by `tar xf`"),
        (gzip.compress(b"a" * 257 + b"ustar" + bytes(250)), "is a tar archive: unpack it by `tar xf`"),
        (gzip.compress(b""), "holds nothing, unpacked by `gunzip`"),
        (gzip.compress(b"x")[:11], "is damaged from its beginning on"),
    ],
    ids=str_or_nothing,
)
def test_what_is_not_read_is_refused_with_what_to_do(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert words in str(caught.value)
