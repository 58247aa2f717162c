"""Simulate three drives of one car, and write them as `candump -l` does: two without attacks, one with some.

python docs/tutorials/drives.py FOLDER
"""

import sys
from pathlib import Path

from kdgat.canbus import Messages, make_vehicle, simulate

SECONDS = {"drive.log": 40.0, "drive-2.log": 110.0, "suspicious.log": 30.0}


def write_candump(path: Path, messages: Messages) -> None:
    """Write messages as lines of a candump log: time, interface, identifier and payload."""
    columns = (messages.timestamp, messages.identifier.tolist(), messages.payload, messages.length.tolist())
    lines = (
        f"({now:.6f}) can0 {identifier:03X}#{bytes(payload[:length]).hex().upper()}\n"
        for now, identifier, payload, length in zip(*columns, strict=True)
    )
    path.write_text("".join(lines), encoding="ascii")


def main(folder: Path) -> None:
    """Write the logs into a folder, and print their names."""
    folder.mkdir(parents=True, exist_ok=True)
    vehicle = make_vehicle(5)
    for seed, (name, seconds) in enumerate(SECONDS.items(), 1):
        attack = "malfunction" if name.startswith("suspicious") else None
        messages = simulate(vehicle, seconds, attack, seed)
        write_candump(folder / name, messages)
        print(f"{folder / name}: {len(messages):,} messages, {seconds:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
