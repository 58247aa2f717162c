"""PCAP and pcapng of SocketCAN through dpkt: frames as Linux hands them to a capture."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, RecordingError
from kdgat.canbus.readers.detect import load_library
from kdgat.canbus.readers.packing import open_recording
from kdgat.canbus.readers.rows import FrameColumns, Rows, RowStatus

LINK_SOCKETCAN, LINK_COOKED, LINK_COOKED_2 = 227, 113, 276
"""Link types: SocketCAN, and the cooked captures of all interfaces at once (`tcpdump -i any`)."""
_PROTOCOLS = (0x000C, 0x000D, 0x000E)  # CAN, CAN FD, CAN XL
_COOKED_HEADER, _COOKED_2_HEADER, _FRAME_HEADER = 16, 20, 8
_EXTENDED_FLAG, _REMOTE_FLAG, _ERROR_FLAG = 0x80000000, 0x40000000, 0x20000000
_STANDARD_MASK, _EXTENDED_MASK = 0x7FF, 0x1FFFFFFF
_FD_FRAME_FLAG = 0x04
_XL_FRAME_FLAG = 0x80  # where frames of other kinds have their length
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
_INTERFACE_BLOCK, _OLD_PACKET_BLOCK, _SIMPLE_PACKET_BLOCK, _PACKET_BLOCK = 1, 2, 3, 6
_IF_NAME, _IF_TSRESOL, _IF_TSOFFSET = 2, 9, 14
_MAX_BLOCK_BYTES = 1 << 24  # a larger one is damage
_NUM_VOTES = 200


class _Frame(NamedTuple):
    """Hold a packet: `data` is the SocketCAN frame in it, None where it carries none; the last one may be damage."""

    timestamp: float
    link: int
    interface: str | None
    data: bytes | None
    damage: str = ""


class _Interface(NamedTuple):
    link: int
    name: str
    ticks_per_s: int
    offset_s: int


def read_pcap(path: Path, size: int) -> Iterator[Rows]:
    """Yield the CAN frames of a capture, at most `size` at once; other packets are passed over.

    Where a capture is cut off, what comes before is kept, and one bad row marks the cut. Raise RecordingError for a
    file that is no capture, and for a capture of something else than CAN.
    """
    dpkt = load_library("dpkt", path, "a PCAP file, which dpkt reads")
    columns = FrameColumns()
    links: set[int] = set()
    num_frames = 0
    with open_recording(path) as stream:
        frames = _frames(dpkt, stream)
        first = list(islice(frames, _NUM_VOTES))
        if first and first[0].damage:
            raise RecordingError(path, f"is no readable PCAP file ({first[0].damage}); capture it again")
        order = ">I" if _is_network_order(first) else "<I"
        for frame in chain(first, frames):
            links.add(frame.link)
            if frame.damage:
                columns.append_damage()
            elif frame.data is not None:
                _append(columns, frame, frame.data, order)
                num_frames += 1
            else:  # a packet of another protocol
                columns.append(frame.timestamp, 0, b"", None, int(RowStatus.EVENT))
            if len(columns) >= size:
                yield columns.take()
    if first and not num_frames:
        raise RecordingError(
            path,
            f"is a capture without CAN frames (link type {', '.join(map(str, sorted(links)))}); capture a CAN "
            "interface of Linux, for instance by `tcpdump -i can0 -w drive.pcap`",
        )
    yield columns.take()


def _append(columns: FrameColumns, frame: _Frame, data: bytes, order: str) -> None:
    if _is_long(data):
        columns.append(frame.timestamp, 0, b"", frame.interface, int(RowStatus.CAN_XL))
        return
    flags = int(struct.unpack_from(order, data)[0]) if len(data) >= _FRAME_HEADER else 0
    length = data[4] if len(data) >= _FRAME_HEADER else 0
    has_bytes = not flags & (_REMOTE_FLAG | _ERROR_FLAG)  # a remote frame only asks for so many
    if len(data) < _FRAME_HEADER + (min(length, MAX_PAYLOAD_BYTES) if has_bytes else 0):
        columns.append_damage()
        return
    if not np.isfinite(frame.timestamp):
        columns.append(0.0, 0, b"", frame.interface, int(RowStatus.TIMESTAMP))
        return
    columns.append_frame(
        frame.timestamp,
        flags & (_EXTENDED_MASK if flags & _EXTENDED_FLAG else _STANDARD_MASK),
        b"" if flags & _REMOTE_FLAG else data[_FRAME_HEADER : _FRAME_HEADER + length],
        frame.interface,
        # Not every capture marks frames of CAN FD; but they alone take more room than a classic one.
        bool(data[5] & _FD_FRAME_FLAG) or length > MAX_PAYLOAD_BYTES or len(data) > _FRAME_HEADER + MAX_PAYLOAD_BYTES,
        bool(flags & _ERROR_FLAG),
    )


def _is_long(data: bytes) -> bool:
    return len(data) > 4 and bool(data[4] & _XL_FRAME_FLAG)


def _is_network_order(frames: Sequence[_Frame]) -> bool:
    """Find the byte order of ids by what they look like: captures ought to hold network order, but not all do."""

    def score(order: str) -> tuple[int, int]:
        whole = [frame.data for frame in frames if frame.data and len(frame.data) >= 4 and not _is_long(frame.data)]
        ids = [struct.unpack_from(order, data)[0] for data in whole]
        return sum(id_ <= _STANDARD_MASK for id_ in ids), sum(bool(id_ & _EXTENDED_FLAG) for id_ in ids)

    return score(">I") >= score("<I")


def _frames(dpkt: ModuleType, stream: BufferedIOBase) -> Iterator[_Frame]:
    try:
        is_pcapng = stream.read(4) == _PCAPNG_MAGIC
        stream.seek(0)
        if is_pcapng:
            yield from _pcapng_frames(dpkt.pcapng, stream)
        else:
            reader = dpkt.pcap.Reader(stream)
            link = reader.datalink() & 0xFFFF  # above are bits of a checksum
            for timestamp, packet in reader:
                interface, data = _unwrap(link, None, packet)
                yield _Frame(float(timestamp), link, interface, data)
    except RecordingError:  # it grows too much
        raise
    except (dpkt.Error, struct.error, EOFError, OSError, ValueError) as error:
        yield _Frame(0.0, 0, None, None, str(error) or "it is cut off")


def _pcapng_frames(pcapng: ModuleType, stream: BufferedIOBase) -> Iterator[_Frame]:
    """Walk the blocks: dpkt's own reader takes all packets for those of the first interface."""
    order = "<"
    interfaces: list[_Interface] = []
    while head := stream.read(8):
        if len(head) < 8:
            raise EOFError("it is cut off")
        if head[:4] == _PCAPNG_MAGIC:  # a section: its byte order follows its length
            head += stream.read(4)
            order = "<" if head[8:] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, num_bytes = struct.unpack_from(f"{order}II", head)
        if not 12 <= num_bytes <= _MAX_BLOCK_BYTES:
            raise ValueError(f"a block of {num_bytes} bytes")
        block = head + stream.read(num_bytes - len(head))
        if len(block) < num_bytes:
            raise EOFError("it is cut off")
        if kind == _INTERFACE_BLOCK:
            interfaces.append(_interface(pcapng, order, block, len(interfaces)))
        elif kind == _SIMPLE_PACKET_BLOCK and interfaces:  # it has no time
            (num_captured,) = struct.unpack_from(f"{order}I", block, 8)
            name, data = _unwrap(interfaces[0].link, interfaces[0].name, block[12:-4][:num_captured])
            yield _Frame(float("nan"), interfaces[0].link, name, data)
        elif kind in (_OLD_PACKET_BLOCK, _PACKET_BLOCK):
            form = f"{order}4I" if kind == _PACKET_BLOCK else f"{order}H2x3I"
            index, high, low, num_captured = struct.unpack_from(form, block, 8)
            if index >= len(interfaces):
                raise ValueError("a packet of an interface that is not described")
            interface = interfaces[index]
            name, data = _unwrap(interface.link, interface.name, block[28 : 28 + num_captured])
            timestamp = interface.offset_s + ((high << 32) | low) / interface.ticks_per_s
            yield _Frame(timestamp, interface.link, name, data)


def _interface(pcapng: ModuleType, order: str, block: bytes, index: int) -> _Interface:
    little = order == "<"
    description = (pcapng.InterfaceDescriptionBlockLE if little else pcapng.InterfaceDescriptionBlock)(block)
    name, ticks_per_s, offset_s = str(index), 10**6, 0
    for option in description.opts:
        if option.code == _IF_NAME:
            name = option.data.rstrip(b"\0").decode("utf-8", "replace") or name
        elif option.code == _IF_TSRESOL:
            power = option.data[0]
            ticks_per_s = 2 ** (power & 0x7F) if power & 0x80 else 10**power
        elif option.code == _IF_TSOFFSET:
            offset_s = struct.unpack(f"{order}q", option.data)[0]
    return _Interface(description.linktype, name, ticks_per_s, offset_s)


def _unwrap(link: int, interface: str | None, packet: bytes) -> tuple[str | None, bytes | None]:
    """Return the interface and the SocketCAN frame of a packet; None for one that carries something else."""
    if link == LINK_SOCKETCAN:
        return interface, packet
    if link == LINK_COOKED and len(packet) >= _COOKED_HEADER:
        protocol = struct.unpack_from(">H", packet, 14)[0]
        return interface, packet[_COOKED_HEADER:] if protocol in _PROTOCOLS else None
    if link == LINK_COOKED_2 and len(packet) >= _COOKED_2_HEADER:
        protocol, index = struct.unpack_from(">HxxI", packet)
        return str(index), packet[_COOKED_2_HEADER:] if protocol in _PROTOCOLS else None
    return interface, None
