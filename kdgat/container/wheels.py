"""The wheels that go into an image: fetched on this machine by pip as it is configured here, kept per lock.

The resolver of locks does not read pip's configuration, and is given it.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from kdgat.base import sha256_of_file
from kdgat.base.locks import try_lock
from kdgat.container import ImageError
from kdgat.container.checkout import WHEEL_SOURCES, Checkout
from kdgat.container.contents import read_hashes, read_pins
from kdgat.container.layout import cache_folder
from kdgat.container.process import run_streaming
from kdgat.container.variants import PYTHON_MINOR, Variant

TORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
# Of several sections that set a key, the later one counts, as for `pip download`.
_SECTIONS: Final = ("global", "download", ":env:")
_EXTRA: Final = ("extra-index-url", "find-links")
_TRUE: Final = ("y", "yes", "t", "true", "on", "1")  # as pip reads them
_LOCK_FILE: Final = ".lock"
_LOCK_AGAIN_S: Final = 0.5
# pip is told each older platform by name; it derives only some of them itself.
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)),
    *("manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2010_x86_64", "manylinux_2_5_x86_64"),
    *("manylinux1_x86_64", "linux_x86_64", "any"),
)
_ABIS: Final = (f"cp{PYTHON_MINOR.replace('.', '')}", "abi3", "none")


@dataclass(frozen=True)
class PackageSources:
    """What pip is configured with; `settings` holds every key, `index-url` and the like among them."""

    settings: Mapping[str, str]

    def for_variant(self, variant: Variant) -> "PackageSources":
        """Keep the main index alone where a variant asks for it; where pip may use none, the folders: all there is."""
        if variant.uses_extra_indexes:
            return self
        extra = _EXTRA[:1] if self.has_no_index else _EXTRA
        return PackageSources({key: value for key, value in self.settings.items() if key not in extra})

    @property
    def has_no_index(self) -> bool:
        """Return whether pip may only take what lies in folders."""
        return self.settings.get("no-index", "").lower() in _TRUE

    def for_pip(self) -> dict[str, str]:
        """Return the environment in which pip has these settings and no others."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        ours = {f"PIP_{key.replace('-', '_').upper()}": value for key, value in self.settings.items()}
        quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        return {**clean, **ours, **quiet, "PIP_CONFIG_FILE": os.devnull}

    def for_uv(self) -> dict[str, str]:
        """Return the environment in which uv resolves from the same places by the same rules."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        indexes = {
            "UV_DEFAULT_INDEX": self.settings.get("index-url", ""),  # PyPI is the default of both
            "UV_INDEX": " ".join(self.settings.get("extra-index-url", "").split()),
        }
        translated = {
            **({} if self.has_no_index else indexes),
            "UV_FIND_LINKS": ",".join(self.settings.get("find-links", "").split()),
            "UV_INSECURE_HOST": " ".join(self.settings.get("trusted-host", "").split()),
            "HTTPS_PROXY": self.settings.get("proxy", ""),
            "SSL_CERT_FILE": self.settings.get("cert", ""),
            "SSL_CLIENT_CERT": self.settings.get("client-cert", ""),
            "UV_HTTP_TIMEOUT": self.settings.get("timeout", self.settings.get("default-timeout", "")),
        }
        # pip takes the best version of all indexes; uv by itself stops at the first index that knows the name.
        rules = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_CONFIG": "1"}
        return {**clean, **{key: value for key, value in translated.items() if value}, **rules}

    def uv_options(self) -> list[str]:
        """Return what uv takes from no variable."""
        return ["--no-index"] if self.has_no_index else []


def read_pip_sources() -> PackageSources:
    """Ask pip for its configuration: files of the machine, the user and the environment, and PIP_ variables."""
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "--no-input", "config", "list"],
        capture_output=True,
        errors="replace",
        timeout=60,
    )
    if answer.returncode:
        raise ImageError(f"pip config list failed: {answer.stderr.strip()[-300:]}; mend pip's configuration")
    return PackageSources(parse_pip_settings(answer.stdout))


def parse_pip_settings(text: str) -> dict[str, str]:
    """Read lines like `global.index-url='https://...'`; keys of other commands than download are left out."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in found:
            found[section][key] = str(ast.literal_eval(value))
    return {key: value for section in _SECTIONS for key, value in found[section].items()}


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
    with tempfile.TemporaryDirectory(prefix="kdgat-wheel-", ignore_cleanup_errors=True) as copy:
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
        is_locked = try_lock(file)
        if is_locked is None:
            on_line(f"wheels: {path.parent} has no file locks: start no other build that downloads into it")
        elif not is_locked:
            on_line(f"wheels: waiting for another build that downloads into {path.parent}")
            while try_lock(file) is False:
                time.sleep(_LOCK_AGAIN_S)
        yield
