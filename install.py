"""`make install`: make an environment, say what it will take, and show signs of life until pip has ended.

All on stderr: stdout belongs to what `make -s cluster-up` prints for the shell. Python 3.6, which clusters still have,
can read this file, and say that it is too old: hence the annotations in quotes.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

OLDEST, NEWEST = (3, 11), (3, 13)  # as pyproject.toml says
SHOW_EVERY_S = 5.0
PACKAGES_A_LINE = 10
LARGE_MB = 100.0  # a file that takes minutes on a slow connection is named when it is begun
MARGIN_BYTES = 200_000_000
NUM_LAST_LINES = 12
STOP_TIMEOUT_S = 30.0  # for pip, which the terminal has interrupted as well: it takes nine seconds
EXIT_INTERRUPTED = 130


class Needs(NamedTuple):
    """What an environment takes on disk, and the wheels that pip keeps until it has unpacked them, in bytes."""

    environment: int
    wheels: int


# Environments as measured on Python 3.11 and 3.13, wheels about.
CPU, CUDA = Needs(3_700_000_000, 1_000_000_000), Needs(7_700_000_000, 3_300_000_000)
CUDA_12 = Needs(9_500_000_000, 4_500_000_000)  # torch before 2.11


class InstallError(Exception):
    """Nothing can be installed; the text says why, and the fix."""


def unfitness() -> str:
    """Say why this Python cannot be kdgat's; empty if it can."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return f"is {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        import ensurepip  # noqa: F401  # Debian has it in a package of its own
    except ImportError:
        return f"has no venv (Debian, Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv)"
    return ""


def find_torch(python: Path, constraints: Path) -> "tuple[str, Needs]":
    """Ask pip which torch it would install; return its version, and what an environment with it takes.

    Where pip cannot say that, the install that follows cannot work either, and says why: the larger one is assumed.
    """
    command = [str(python), "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    command += ["--report", "-", "--constraint", str(constraints), "torch"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (found,) = [one["metadata"] for one in json.loads(answer.stdout)["install"]]
    except ValueError:
        return "", CUDA
    of_cuda = [line for line in found.get("requires_dist", ()) if line.startswith(("nvidia-", "cuda-"))]
    if any("-cu12" in line for line in of_cuda):
        return found["version"], CUDA_12
    return found["version"], CUDA if of_cuda else CPU


def with_other_torch(constraints: Path, version: str, folder: Path) -> Path:
    """Write constraints that pin torch to another version, and what torch pins itself not at all."""
    lines = [line for line in constraints.read_text().splitlines() if not line.startswith(("torch==", "triton=="))]
    changed = folder / "constraints.txt"
    changed.write_text("\n".join([*lines, f"torch=={version}", ""]))
    return changed


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes on disk; files that vanish meanwhile count nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(path, name).lstat().st_blocks * 512
    return total


def require_room(venv: Path, needs: Needs) -> None:
    """Raise InstallError if the disks of the environment and of pip's temporary files have too little room."""
    missing = max(needs.environment - size_of(venv), 0)
    wanted = {venv: missing + MARGIN_BYTES}
    temporary, wheels = Path(tempfile.gettempdir()), needs.wheels * missing // needs.environment
    if temporary.stat().st_dev == venv.stat().st_dev:
        wanted[venv] += wheels
    else:
        wanted[temporary] = wheels
    fixes = {venv: "another disk: make install VENV=/path/of/.venv", temporary: "export TMPDIR=/path/on/another/disk"}
    for folder, size in wanted.items():
        free = shutil.disk_usage(folder).free
        if free < size:
            raise InstallError(
                f"the disk of {folder} has {_gigabytes(free)} free, and {_gigabytes(size)} are needed: "
                f"free some, or choose {fixes[folder]}"
            )


def forget_half_installed(venv: Path) -> None:
    """Remove the notes of packages that pip was interrupted at: it would take them as installed, and complete none."""
    for notes in venv.glob("lib/python*/site-packages/*.dist-info"):
        if not (notes / "RECORD").is_file():
            shutil.rmtree(notes)


class Signs:
    """What pip does, in few lines: packages that it fetches, then how the environment grows while it unpacks them."""

    def __init__(self, venv: Path, needs: Needs) -> None:
        self.venv = venv
        self.needs = needs
        self.num_packages = 0
        self.is_unpacking = False

    def read(self, line: str) -> None:
        """Take a line that pip has printed."""
        words = line.split()
        if line.startswith(("Collecting ", "Processing ")):
            self.num_packages += 1
            if self.num_packages % PACKAGES_A_LINE == 0:
                say(f"  {self.num_packages} packages fetched")
        elif words[:1] == ["Downloading"] and words[-1] == "MB)" and float(words[-2].strip("(")) >= LARGE_MB:
            say(f"  fetching {words[1].rpartition('/')[2]} {words[-2]} {words[-1]}")
        elif line.startswith("Installing collected"):
            say("  all fetched; unpacking and compiling them")
            self.is_unpacking = True

    def show_growth(self) -> None:
        """Print how large the environment is, while pip unpacks into it."""
        if self.is_unpacking:
            say(f"  {_gigabytes(size_of(self.venv))} of about {_gigabytes(self.needs.environment)} unpacked")


@contextlib.contextmanager
def repeated(work: "Callable[[], None]", seconds: float) -> "Iterator[None]":
    """Call `work` again and again in a thread of this process, which ends with the context."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def install(python: Path, words: "list[str]", signs: Signs, log: Path) -> None:
    """Run pip, and end it with this process.

    Raises:
        InstallError: with the last lines that pip printed.
    """
    command = [str(python), "-m", "pip", "install", "--progress-bar", "off", *words]
    with log.open("w") as output, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:
        try:
            with repeated(signs.show_growth, SHOW_EVERY_S):
                for line in pip.stdout or ():
                    output.write(line)
                    signs.read(line)
        except BaseException:
            stop(pip)
            raise
    if pip.returncode:
        last = log.read_text().splitlines()[-NUM_LAST_LINES:]
        raise InstallError("\n".join([*last, f"pip failed; all that it printed: {log}"]))


def stop(process: "subprocess.Popen[str]") -> None:
    """Wait for a process that was interrupted as well; end it if it was not, or if somebody cannot wait."""
    say("stopping: pip removes its temporary files")
    for end in (process.terminate, process.kill):
        try:
            process.wait(STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            end()


def make_environment(venv: Path) -> Path:
    """Return the Python of an environment with pip; one that Ctrl-C has left without it is made anew."""
    python = venv / "bin" / "python"
    ask = [str(python), "-m", "pip", "--version"]
    has_pip = python.exists() and subprocess.run(ask, capture_output=True, check=False).returncode == 0
    if not has_pip:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True, stdout=sys.stderr)
    return python


def say(text: str) -> None:
    """Print a line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def main() -> int:
    """Install what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="install.py", description="What is no option here is for pip to install.")
    parser.add_argument("--fits", action="store_true", help="only say whether this Python is one that kdgat runs with")
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--constraint", type=Path, default=Path("constraints.txt"))
    parser.add_argument("--torch", default="", metavar="VERSION", help="another than that of the constraints")
    given, words = parser.parse_known_args()
    if given.fits:
        print(unfitness(), end="")
        return int(bool(unfitness()))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin = time.monotonic()
    try:
        python = make_environment(given.venv)
        forget_half_installed(given.venv)
        constraints = with_other_torch(given.constraint, given.torch, given.venv) if given.torch else given.constraint
        torch, needs = find_torch(python, constraints)
        kind = "for processors alone, without CUDA" if needs is CPU else "with CUDA"
        about = f"with torch {torch}, {kind}" if torch else "at most"
        say(f"Installing into {given.venv}: {_gigabytes(needs.environment)} ({about}), in one to ten minutes")
        require_room(given.venv, needs)
        install(
            python,
            ["--constraint", str(constraints), *words],
            Signs(given.venv, needs),
            given.venv / "install.log",
        )
    except KeyboardInterrupt:
        say("stopped; the same command goes on from there")
        return EXIT_INTERRUPTED
    except (InstallError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 1
    size = _gigabytes(size_of(given.venv))
    say(f"Installed, {size} in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
