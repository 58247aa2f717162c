"""Amounts and sentences as people read them, and what is said of files that nothing here reads."""

import difflib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

MIB: Final = 1 << 20
UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))  # in seconds
PICKLED: Final = (".pt", ".pth", ".pkl", ".pickle", ".ckpt")  # caches and checkpoints of other programs


def describe_bytes(amount: float) -> str:
    """Write bytes as people read them.

    >>> describe_bytes(850 * MIB), describe_bytes(1434 * MIB)
    ('850 MiB', '1.4 GiB')
    """
    return f"{amount / MIB:.0f} MiB" if amount < 1024 * MIB else f"{amount / (1024 * MIB):.1f} GiB"


def describe_seconds(seconds: float) -> str:
    """State how long something lasts, in its two largest units: 45 s, 2 min 5 s, 16 h 3 min, 2 d 4 h."""
    rest = max(0, round(seconds))
    for (unit, size), (smaller, smaller_size) in pairwise(UNITS):
        if rest >= size:
            return f"{rest // size} {unit} {rest % size // smaller_size} {smaller}"
    return f"{rest} s"


def list_some(names: Sequence[object], most: int) -> str:
    """Name the first ones, and count the others.

    >>> list_some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Ask whether one that begins so, or the nearest, was meant; where none is near, say something else.

    >>> suggest("osc", ["local", "osc-ascend", "osc-pitzer"], "")
    "did you mean 'osc-ascend' or 'osc-pitzer'?"
    """
    known = list(known)
    if beginning := [one for one in known if name and one.startswith(name)][:3]:
        return f"did you mean {' or '.join(map(repr, beginning))}?"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise


def describe_pickled(path: Path, instead: str) -> str:
    """Say of a cache or checkpoint of another program what to give instead; empty for a file of another name.

    >>> describe_pickled(Path("epoch=3.ckpt"), "train again"), describe_pickled(Path("a.csv"), "train again")
    ('holds Python objects of another program, which are not taken over: train again', '')
    """
    is_one = path.suffix.lower() in PICKLED
    return f"holds Python objects of another program, which are not taken over: {instead}" if is_one else ""


def say(text: str, stream: TextIO | None = None) -> None:
    """Print on standard error, or elsewhere; on a terminal broken between words, in a pipe as it is."""
    stream = stream or sys.stderr
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapper.fill(line) for line in text.split("\n"))
    print(text, file=stream, flush=True)
