"""The commands of a page of docs/tutorials, run as printed by one shell in a folder like a fresh clone."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tutorials"
TIMEOUT_S = 1800.0
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Followed:
    """What a shell did with the commands of a page."""

    folder: Path
    output: str  # standard output and error, in order
    failed: list[tuple[int, str]]  # exit status and command, in order, of what did not end with 0


def commands(page: str, begin: str = "", end: str = "") -> str:
    """Return the commands of a page, or of the part from one heading up to another."""
    text = (PAGES / page).read_text(encoding="utf-8")
    if begin:
        text = text[text.index(f"\n## {begin}") :]
    if end:
        text = text[: text.index(f"\n## {end}")]
    return "\n".join(_BLOCK.findall(text))


def fresh_clone(folder: Path) -> Path:
    """Make a folder with what a clone has, and .venv: links to this checkout's own, without what people made in it."""
    folder.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in {path.partition("/")[0] for path in listed.split("\0") if path}:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return folder


def follow(script: str, folder: Path, environment: Mapping[str, str] | None = None) -> Followed:
    """Give commands to one shell, which goes on after one that fails, as a person would."""
    log = folder / "failed-commands"
    log.write_text("")
    home = folder / "home"
    home.mkdir(exist_ok=True)
    program = f'trap \'printf "%s\\t%s\\0" "$?" "$BASH_COMMAND" >> {log}\' ERR\nset -u\n{script}'
    printed = folder / "output"
    with printed.open("wb") as output:  # no pipe, which servers that a page starts would keep open
        shell = subprocess.Popen(
            ["bash", "-c", program],
            cwd=folder,
            env={
                **os.environ,
                "HOME": str(home),
                "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
                "COLUMNS": "200",
                "NO_COLOR": "1",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            shell.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            raise TimeoutError(f"not done after {TIMEOUT_S:g} s: {printed.read_text(errors='replace')}") from error
    entries = [entry.split("\t", 1) for entry in log.read_text().split("\0") if entry]
    return Followed(
        folder, printed.read_text(errors="replace"), [(int(status), command) for status, command in entries]
    )
