"""Small recordings and plain Python writers of every text format, against which the readers are tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kdgat.canbus import Messages

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
"""Real recordings, where the machine has them."""


def with_footer(footer: bytes) -> bytes:
    """Return a Parquet file of a footer alone."""
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def random_messages(num_messages: int = 200, seed: int = 0, name: str = "drive", scenario: str = "train_a") -> Messages:
    """Draw messages of all lengths, standard and extended ids, with microsecond timestamps."""
    random = np.random.default_rng(seed)
    length = random.integers(0, 9, num_messages).astype(np.uint8)
    payload = random.integers(0, 256, (num_messages, 8)).astype(np.uint8)
    payload[np.arange(8) >= length[:, None]] = 0
    identifier = np.where(
        random.random(num_messages) < 0.8,
        random.integers(0, 1 << 11, num_messages),
        random.integers(0, 1 << 29, num_messages),
    )
    return Messages(
        timestamp=np.round(1.5e9 + np.cumsum(random.exponential(0.001, num_messages)), 6),
        identifier=identifier.astype(np.uint32),
        payload=payload,
        length=length,
        label=(random.random(num_messages) < 0.3).astype(np.uint8),
        name=name,
        scenario=scenario,
    )


def write_csv(path: Path, messages: Messages, *, has_labels: bool = True) -> None:
    """Write the layout of can-train-and-test, an hour later: other messages than those of the source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["timestamp,arbitration_id,data_field" + (",attack" if has_labels else "")]
    columns = (messages.timestamp + 3600.0, messages.identifier, messages.payload, messages.length, messages.label)
    for time, identifier, payload, length, label in zip(*columns, strict=True):
        data = bytes(payload[:length]).hex().upper()
        lines.append(f"{time:.6f},{identifier:03X},{data}" + (f",{label}" if has_labels else ""))
    path.write_text("\n".join(lines) + "\n")


def hex_bytes(messages: Messages, row: int) -> list[str]:
    """Return the payload of one message as two-digit bytes."""
    return [f"{byte:02x}" for byte in messages.payload[row, : messages.length[row]]]


def _can_train_and_test(m: Messages, row: int) -> str:
    return f"{m.timestamp[row]:.6f},{m.identifier[row]:03X},{''.join(hex_bytes(m, row)).upper()},{m.label[row]}"


def _bytes_then_flag(m: Messages, row: int) -> str:
    return ",".join(
        [
            f"{m.timestamp[row]:.6f}",
            f"{m.identifier[row]:04x}",
            str(m.length[row]),
            *hex_bytes(m, row),
            "RT"[m.label[row]],
        ]
    )


def _padded_bytes_then_flag(m: Messages, row: int) -> str:
    padding = [""] * (8 - int(m.length[row]))
    return ",".join(
        [
            f"{m.timestamp[row]:.6f}",
            f"{m.identifier[row]:04x}",
            str(m.length[row]),
            *hex_bytes(m, row),
            *padding,
            "RT"[m.label[row]],
        ]
    )


def _zero_padded_bytes_then_flag(m: Messages, row: int) -> str:
    data = [f"{byte:02X}" for byte in m.payload[row]]
    return ",".join(
        [f"{m.timestamp[row]:.6f}", f"{m.identifier[row]:04X}", str(m.length[row]), *data, "RT"[m.label[row]]]
    )


def _label_and_remark(m: Messages, row: int) -> str:
    kind = "DoS" if m.label[row] else "Normal"
    return f"{_zero_padded_bytes_then_flag(m, row)[:-1]}{m.label[row]},{kind}"


def _bytes_alone(m: Messages, row: int) -> str:
    return ",".join([f"{m.timestamp[row]:.6f}", f"{m.identifier[row]:04x}", str(m.length[row]), *hex_bytes(m, row)])


def _spaced_bytes_alone(m: Messages, row: int) -> str:
    return f"{m.timestamp[row]:.6f},{m.identifier[row]:04x},{m.length[row]},{' '.join(hex_bytes(m, row))}"


def _spaced_bytes_then_flag(m: Messages, row: int) -> str:
    data = " ".join(hex_bytes(m, row))
    return f"{m.timestamp[row]:.6f},{m.identifier[row]:04x},{m.length[row]},{data},{'RT'[m.label[row]]}"


def _hcrl_text(m: Messages, row: int) -> str:
    data = " ".join(hex_bytes(m, row))
    return (
        f"Timestamp: {m.timestamp[row]:.6f}        ID: {m.identifier[row]:04x}    000    DLC: {m.length[row]}    {data}"
    )


def _candump_log(m: Messages, row: int) -> str:
    return f"({m.timestamp[row]:.6f}) vcan0 {m.identifier[row]:03X}#{''.join(hex_bytes(m, row)).upper()}"


def _candump_screen(m: Messages, row: int) -> str:
    data = " ".join(hex_bytes(m, row)).upper()
    return f" ({m.timestamp[row]:.6f})  can1  RX - -  {m.identifier[row]:03X}   [{m.length[row]}]  {data}"


Writer = Callable[[Messages, int], str]
BYTE_HEADER = "Timestamp,ID,DLC,DATA[0],DATA[1],DATA[2],DATA[3],DATA[4],DATA[5],DATA[6],DATA[7],Flag"

LABELLED_FORMATS: dict[str, tuple[str, Writer]] = {
    "can-train-and-test.csv": ("timestamp,arbitration_id,data_field,attack", _can_train_and_test),
    "can-train-and-test-without-header.csv": ("", _can_train_and_test),
    "car-hacking.csv": ("", _bytes_then_flag),
    "survival-with-header.csv": (BYTE_HEADER, _bytes_then_flag),
    "survival-padded.csv": (BYTE_HEADER, _padded_bytes_then_flag),
    "survival-spaced.csv": ("", _spaced_bytes_then_flag),
    "zero-padded.csv": ("", _zero_padded_bytes_then_flag),
    "zero-padded-with-header.csv": (BYTE_HEADER, _zero_padded_bytes_then_flag),
    "label-and-remark.csv": (f"{BYTE_HEADER.replace('Flag', 'label')},Attack_Type", _label_and_remark),
}
UNLABELLED_FORMATS: dict[str, tuple[str, Writer]] = {
    "attack-free.txt": ("", _hcrl_text),
    "survival-free-driving.txt": ("", _bytes_alone),
    "survival-free-driving-spaced.txt": ("", _spaced_bytes_alone),
    "candump.log": ("", _candump_log),
    "candump-screen.log": ("", _candump_screen),
}
FORMATS = LABELLED_FORMATS | UNLABELLED_FORMATS


def write_text(path: Path, messages: Messages, text_format: str, newline: str = "\n", end: str | None = None) -> Path:
    """Write messages in one of `FORMATS`; `end` is what follows the last line, by default a newline."""
    header, writer = FORMATS[text_format]
    lines = ([header] if header else []) + [writer(messages, row) for row in range(len(messages))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((newline.join(lines) + (newline if end is None else end)).encode())
    return path


def assert_same_traffic(read: Messages, written: Messages) -> None:
    """Compare all columns but the labels."""
    np.testing.assert_array_equal(read.timestamp, written.timestamp)
    np.testing.assert_array_equal(read.identifier, written.identifier)
    np.testing.assert_array_equal(read.payload, written.payload)
    np.testing.assert_array_equal(read.length, written.length)


def joined(chunks: Sequence[Messages]) -> Messages:
    """Join chunks as one recording."""
    return Messages(
        timestamp=np.concatenate([chunk.timestamp for chunk in chunks]),
        identifier=np.concatenate([chunk.identifier for chunk in chunks]),
        payload=np.concatenate([chunk.payload for chunk in chunks]),
        length=np.concatenate([chunk.length for chunk in chunks]),
        label=np.concatenate([chunk.label for chunk in chunks]),
        name=chunks[0].name,
        scenario=chunks[0].scenario,
        labelled=chunks[0].labelled,
    )
