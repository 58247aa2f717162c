"""Pages that cannot be what they say are named before a library reads them; whole files of any writer pass."""

from pathlib import Path

import polars as pl
import pytest

from kdgat.base import UserError
from kdgat.canbus import RecordingError, read_recording, write_recording
from kdgat.canbus.readers.parquet_pages import check_pages
from tests.canbus.recording_files import random_messages, with_footer


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "snappy", "gzip"])
@pytest.mark.parametrize("use_pyarrow", [True, False])
def test_whole_files_pass(tmp_path: Path, compression: str, use_pyarrow: bool) -> None:
    frame = pl.DataFrame({"a": range(5000), "b": ["x", None] * 2500, "c": [0.5] * 5000})
    for rows in (0, 1, 5000):
        frame.head(rows).write_parquet(tmp_path / "a.parquet", compression=compression, use_pyarrow=use_pyarrow)
        check_pages(tmp_path / "a.parquet")


def test_a_page_of_less_than_nothing_is_damage_and_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "train_a__a.parquet"
    write_recording(path, random_messages(12))
    data = bytearray(path.read_bytes())
    # The header of the first page: type, sizes, then a structure whose first number counts the values.
    place = data.index(0x2C, 4)  # field 5, a structure
    assert data[place + 1 : place + 3] == bytes([0x15, 24])  # its field 1, a number: 12
    data[place + 2] = 25  # -13
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=r"the page at byte 4 says that it has .* bytes and \[-13\] values"):
        read_recording(path)


@pytest.mark.parametrize("kept", [0, 3, 11, 12, 200])
def test_a_cut_file_is_damage(tmp_path: Path, kept: int) -> None:
    write_recording(tmp_path / "a.parquet", random_messages(12))
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:kept] + b"PAR1")
    with pytest.raises(UserError):
        check_pages(tmp_path / "a.parquet")


def test_an_empty_file_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "train_a__a.parquet"
    path.touch()
    with pytest.raises(UserError, match="empty"):
        check_pages(path)
    with pytest.raises(RecordingError, match="empty"):
        read_recording(path)


@pytest.mark.parametrize("head", [0x19, 0x1A, 0x1C])  # in each a list, a set or a structure, and so on
def test_what_is_nested_without_end_is_damage(tmp_path: Path, head: int) -> None:
    path = tmp_path / "train_a__a.parquet"
    path.write_bytes(with_footer(bytes([head]) * 3000))
    with pytest.raises(RecordingError, match="too deep"):
        read_recording(path)


def test_values_of_other_kinds_are_damage(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(with_footer(bytes([0x45, 0x02, 0x00])))  # field 4, row groups, is a number
    with pytest.raises(UserError, match="values of other kinds"):
        check_pages(tmp_path / "a.parquet")
