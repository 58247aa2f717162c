"""The wheels that go into an image: fetched on this machine by pip as it is configured here, kept per lock."""

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from kdgat.base.files import sha256_of_file
from kdgat.container.checkout import WHEEL_SOURCES, Checkout
from kdgat.container.contents import read_hashes, read_pins
from kdgat.container.errors import ImageError
from kdgat.container.layout import cache_folder
from kdgat.container.process import run_streaming
from kdgat.container.sources import TORCH_CPU_INDEX, PackageSources
from kdgat.container.variants import PYTHON_MINOR, Variant

_LOCK_FILE: Final = ".lock"
# pip is told each older platform by name; it derives only some of them itself.
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)),
    *("manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2010_x86_64", "manylinux_2_5_x86_64"),
    *("manylinux1_x86_64", "linux_x86_64", "any"),
)
_ABIS: Final = (f"cp{PYTHON_MINOR.replace('.', '')}", "abi3", "none")


def fetch_wheels(
    checkout: Checkout, variant: Variant, sources: PackageSources, log: Path, on_line: Callable[[str], None]
) -> Path:
    """Download what the lock names, unless it lies there from an earlier build, and return the folder.

    What lies there is believed only with the hash that the lock has of it; anything else is removed.

    Raises:
        ImageError: if the lock is missing, or pip cannot get a file whose hash the lock has.
    """
    lock = checkout.lock_path(variant)
    if not lock.exists():
        raise ImageError(f"{lock} is missing: kdgat image lock {variant.name}")
    content = hashlib.sha256(lock.read_bytes()).hexdigest()
    folder = cache_folder("wheels") / f"{variant.name}-{content[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / _LOCK_FILE, on_line):
        missing = _remove_others(folder, lock.read_text())
        if not missing:
            on_line(f"wheels: from {folder}")
            return folder
        on_line(f"wheels: downloading {len(missing)} into {folder}")
        arguments = ["download", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off",
                 "--implementation", "cp", "--python-version", PYTHON_MINOR, "--requirement", str(lock),
                 "--dest", str(folder)]  # fmt: skip
        arguments += [word for platform in _PLATFORMS for word in ("--platform", platform)]
        arguments += [word for abi in _ABIS for word in ("--abi", abi)]
        environment = sources.for_variant(variant).for_pip()
        _pip(arguments, environment, log, lambda line: on_line(line) if line.startswith("Collecting ") else None)
        missing = _remove_others(folder, lock.read_text())
        if missing:
            raise ImageError(f"pip download brought no wheel with the lock's hash of {', '.join(missing)}; log: {log}")
    return folder


def _remove_others(folder: Path, lock: str) -> list[str]:
    """Remove wheels that a lock does not name, or not with their hash, and return the packages that lack one."""
    hashes, missing = read_hashes(lock), set(read_pins(lock))
    for wheel in sorted(folder.glob("*.whl")):
        name = canonicalize_name(wheel.name.partition("-")[0])
        if name in missing and f"sha256:{sha256_of_file(wheel)}" in hashes[name]:
            missing.remove(name)
        else:
            wheel.unlink()
    return sorted(missing)


def build_own_wheel(checkout: Checkout, folder: Path, sources: PackageSources, log: Path) -> Path:
    """Build kdgat's own wheel from the checkout as it is now, into `folder`, and return its path."""
    with tempfile.TemporaryDirectory(prefix="kdgat-wheel-") as copy:
        for name in WHEEL_SOURCES:
            source, target = checkout.root / name, Path(copy, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]", ".*"))
            else:
                shutil.copy(source, target)
        _pip(["wheel", "--no-deps", "--wheel-dir", str(folder), copy], sources.for_pip(), log, lambda line: None)
    wheel = next(folder.glob(f"kdgat-{checkout.version}-*.whl"), None)
    if wheel is None:
        raise ImageError(f"pip made no wheel of kdgat {checkout.version} in {folder}; its log: {log}")
    return wheel


def _pip(arguments: list[str], environment: Mapping[str, str], log: Path, on_line: Callable[[str], None]) -> None:
    ending = run_streaming([sys.executable, "-m", "pip", *arguments], environment, log, on_line)
    if ending.status == 0:
        return
    output = " ".join(line.strip() for line in ending.last_lines if line.strip())[-800:]
    fix = "; check pip's configuration (pip config list)"
    if "+cpu" in output:
        fix = (
            f"; torch's builds for processors have an index of their own: export PIP_EXTRA_INDEX_URL={TORCH_CPU_INDEX}"
        )
    raise ImageError(f"pip {arguments[0]} failed: {output}{fix}; its log: {log}")


@contextmanager
def _alone(path: Path, on_line: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other build downloads into the same folder."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_line(f"wheels: waiting for another build that downloads into {path.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
