"""Logs in the formats of vendors, written by python-can and dpkt, against which the readers are tested."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import can
import dpkt
import pytest
from can.io.trc import TRCFileVersion

from kdgat.canbus import Messages
from tests.canbus.recording_files import random_messages

NETWORK_ORDER, HOST_ORDER = ">", "<"
EXTENDED_FLAG = 0x80000000


def frames(messages: Messages, channel: int | None = 0) -> Iterator[can.Message]:
    """Yield messages as python-can has them."""
    for row in range(len(messages)):
        identifier = int(messages.identifier[row])
        yield can.Message(
            timestamp=float(messages.timestamp[row]),
            arbitration_id=identifier,
            is_extended_id=identifier > 0x7FF,
            data=messages.payload[row, : messages.length[row]].tobytes(),
            channel=channel,
        )


def error_frame(timestamp: float, channel: int = 0) -> can.Message:
    """Make what a controller logs when it met an error."""
    return can.Message(timestamp=timestamp, is_error_frame=True, channel=channel)


def remote_frame(timestamp: float, identifier: int = 0x123, channel: int = 0) -> can.Message:
    """Make a remote frame that asks for 4 bytes."""
    return can.Message(
        timestamp=timestamp,
        arbitration_id=identifier,
        is_extended_id=False,
        is_remote_frame=True,
        dlc=4,
        channel=channel,
    )


def fd_frame(timestamp: float, num_bytes: int = 12, channel: int = 0) -> can.Message:
    """Make a frame of CAN FD."""
    return can.Message(
        timestamp=timestamp,
        arbitration_id=0x321,
        is_extended_id=False,
        is_fd=True,
        data=bytes(num_bytes),
        channel=channel,
    )


@contextmanager
def in_utc() -> Iterator[None]:
    """Have the clock of this process in UTC: python-can writes local time into MF4 files."""
    zone = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        os.environ |= {"TZ": zone} if zone is not None else {}
        time.tzset()


def write_log(path: Path, messages: Iterable[can.Message]) -> Path:
    """Write by python-can's writer for the suffix of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_utc(), can.Logger(str(path)) as logger:
        for message in messages:
            logger(message)
    return path


def write_trace_1_0(path: Path, messages: Iterable[can.Message]) -> Path:
    """Write a PEAK trace of version 1.0, whose times are whole milliseconds."""
    with can.TRCWriter(str(path)) as writer:
        writer.file_version = TRCFileVersion.V1_0
        for message in messages:
            writer(message)
    return path


def socketcan(message: can.Message, order: str = NETWORK_ORDER) -> bytes:
    """Return a frame as Linux hands it to a capture."""
    flags = message.arbitration_id | (EXTENDED_FLAG if message.is_extended_id else 0)
    flags |= (0x40000000 if message.is_remote_frame else 0) | (0x20000000 if message.is_error_frame else 0)
    room = 64 if message.is_fd else 8
    length = message.dlc if message.is_remote_frame else len(message.data)
    return struct.pack(f"{order}IBBxx{room}s", flags, length, 4 if message.is_fd else 0, bytes(message.data))


def cooked(message: can.Message) -> bytes:
    """Return a frame in a capture of all interfaces."""
    return struct.pack(">HHH8sH", 4, 280, 0, b"", 0x000C) + socketcan(message)


def cooked_2(message: can.Message) -> bytes:
    """Return a frame in a capture of all interfaces, as tcpdump writes it since 2020; it names the interface."""
    return struct.pack(">HxxIHBB8s", 0x000C, 3 + (message.channel == 1), 280, 4, 0, b"") + socketcan(message)


def write_pcap(
    path: Path,
    messages: Iterable[can.Message],
    link: int = 227,
    pack: Callable[[can.Message], bytes] = socketcan,
    nano: bool = True,
) -> Path:
    """Write a PCAP file by dpkt."""
    with path.open("wb") as stream:
        writer = dpkt.pcap.Writer(stream, linktype=link, nano=nano)
        for message in messages:
            writer.writepkt(pack(message), ts=message.timestamp)
    return path


def write_pcapng(path: Path, messages: Iterable[can.Message], interfaces: tuple[str, ...] = ("can0", "can1")) -> Path:
    """Write a pcapng file of several interfaces in blocks of dpkt, times in microseconds."""
    pcapng = dpkt.pcapng
    with path.open("wb") as stream:
        stream.write(bytes(pcapng.SectionHeaderBlockLE()))
        for name in interfaces:
            options = [
                pcapng.PcapngOptionLE(code=2, data=name.encode()),
                pcapng.PcapngOptionLE(code=pcapng.PCAPNG_OPT_ENDOFOPT),
            ]
            stream.write(bytes(pcapng.InterfaceDescriptionBlockLE(linktype=227, opts=options)))
        for message in messages:
            ticks = round(message.timestamp * 1e6)
            block = pcapng.EnhancedPacketBlockLE(
                iface_id=message.channel, ts_high=ticks >> 32, ts_low=ticks & 0xFFFFFFFF, pkt_data=socketcan(message)
            )
            stream.write(bytes(block))
    return path


Writer = Callable[[Path, Messages], Path]

# Name -> (writer, resolution of its times in seconds)
WRITERS: dict[str, tuple[Writer, float]] = {
    "a.asc": (lambda path, messages: write_log(path, frames(messages)), 1e-6),
    "a.blf": (lambda path, messages: write_log(path, frames(messages)), 1e-6),
    "a.trc": (lambda path, messages: write_log(path, frames(messages)), 1e-6),
    "a-1.0.trc": (lambda path, messages: write_trace_1_0(path, frames(messages)), 1e-3),
    "a.mf4": (lambda path, messages: write_log(path, frames(messages)), 1e-6),
    "a.pcap": (lambda path, messages: write_pcap(path, frames(messages)), 1e-6),
    "micro.pcap": (lambda path, messages: write_pcap(path, frames(messages), nano=False), 1e-6),
    "cooked.pcap": (lambda path, messages: write_pcap(path, frames(messages), 113, cooked), 1e-6),
    "cooked2.pcap": (lambda path, messages: write_pcap(path, frames(messages), 276, cooked_2), 1e-6),
    "host-order.pcap": (
        lambda path, messages: write_pcap(path, frames(messages), 227, lambda frame: socketcan(frame, HOST_ORDER)),
        1e-6,
    ),
    "a.pcapng": (lambda path, messages: write_pcapng(path, frames(messages)), 1e-6),
}

MULTI_CHANNEL_WRITERS: dict[str, tuple[Callable[[Path, list[can.Message]], Path], tuple[str, str]]] = {
    "a.asc": (write_log, ("1", "2")),
    "a.blf": (write_log, ("1", "2")),
    "a.trc": (write_log, ("1", "2")),
    "a.mf4": (write_log, ("0", "1")),  # as python-can counts them
    "a.pcapng": (write_pcapng, ("can0", "can1")),
    "a.pcap": (lambda path, messages: write_pcap(path, messages, 276, cooked_2), ("3", "4")),
}


def merged(first: Messages, second: Messages) -> list[can.Message]:
    """Mix the messages of two channels by time."""
    return sorted(chain(frames(first, 0), frames(second, 1)), key=lambda frame: frame.timestamp)


def mf4_whose_reader(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an MF4 file, and put a module before asammdf that does this when it is imported."""
    path = WRITERS["a.mf4"][0](folder / "a.mf4", random_messages(10))
    (folder / "asammdf.py").write_text(does)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return path
