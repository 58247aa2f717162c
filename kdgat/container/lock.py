"""The locks: every package of an image with version and hashes, resolved for the image's platform by uv."""

import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kdgat.base import write_bytes_atomically
from kdgat.container import ImageError
from kdgat.container.checkout import Checkout
from kdgat.container.contents import read_hashes, read_pins
from kdgat.container.variants import NODE_GROUPS, PYTHON_MINOR, Variant
from kdgat.container.wheels import TORCH_CPU_INDEX, PackageSources

PLATFORM: Final = "x86_64-manylinux_2_28"
RESOLVE_TIMEOUT_S: Final = 600
NO_PINS: Final[Mapping[str, str]] = {}
_HEADER: Final = """\
# Rendered by `kdgat image lock {name}` from pyproject.toml, constraints.txt and kdgat/container/variants.py.
# Python {minor}, Linux on x86-64, glibc 2.28 or newer.
"""


def requirement_name(requirement: str) -> str:
    """Return the normalized name of a requirement, which a comment may follow."""
    try:
        return canonicalize_name(Requirement(requirement.partition(" #")[0]).name)
    except InvalidRequirement as error:
        raise ImageError(f"{requirement!r} is no requirement: {error}") from error


def list_requirements(project: dict[str, Any], variant: Variant) -> list[str]:
    """Collect what a node needs from the table [project] of pyproject.toml, and what the variant adds or replaces."""
    wanted = list(project["dependencies"])
    groups = project["optional-dependencies"]
    for group, names in NODE_GROUPS.items():
        chosen = [text for text in groups[group] if names is None or requirement_name(text) in names]
        if names is not None and len(chosen) != len(names):
            missing = ", ".join(sorted(set(names) - {requirement_name(text) for text in chosen}))
            raise ImageError(f"pyproject.toml has no {missing} in its group {group}: correct NODE_GROUPS")
        wanted += chosen
    replaced = {requirement_name(text) for text in variant.requirements}
    return [*(text for text in wanted if requirement_name(text) not in replaced), *variant.requirements]


def list_constraints(text: str, variant: Variant) -> list[str]:
    """Return the lines of constraints.txt that hold for this variant."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line for line in lines if requirement_name(line) not in variant.unconstrained]


def resolve_lock(
    checkout: Checkout, variant: Variant, sources: PackageSources, pins: Mapping[str, str] = NO_PINS
) -> str:
    """Resolve the lock anew, with the newest versions that fit; `pins` decides versions beside constraints.txt.

    Raises:
        ImageError: with the resolver's own words.
    """
    with tempfile.TemporaryDirectory(prefix="kdgat-lock-", ignore_cleanup_errors=True) as folder:
        names = ("wanted.in", "constraints.txt", "overrides.txt", "output.lock")
        wanted, constraints, overrides, output = (Path(folder, name) for name in names)
        wanted.write_text("\n".join(list_requirements(checkout.project, variant)) + "\n")
        constrained = list_constraints(checkout.constraints_path.read_text(), variant)
        constrained += [f"{name}=={version}" for name, version in pins.items()]
        constraints.write_text("\n".join(constrained) + "\n")
        overrides.write_text("\n".join(variant.overrides) + "\n")
        _uv(
            ["pip", "compile", str(wanted), "--constraint", str(constraints), "--overrides", str(overrides),
             "--output-file", str(output), "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
             "--no-emit-find-links"],
            variant, sources, f"image {variant.name}: no set of packages fits",
        )  # fmt: skip
        return _HEADER.format(name=variant.name, minor=PYTHON_MINOR) + output.read_text()


def write_lock(checkout: Checkout, variant: Variant, sources: PackageSources) -> Path:
    """Write the lock into the checkout and return its path."""
    path = checkout.lock_path(variant)
    write_bytes_atomically(path, resolve_lock(checkout, variant, sources).encode())
    return path


def check_lock(checkout: Checkout, variant: Variant, sources: PackageSources) -> int:
    """Let the resolver confirm the lock without installing anything, and return the number of its packages.

    Two questions: does the lock alone, with its hashes, make a complete installation on the image's platform; and is it
    what pyproject.toml, constraints.txt and `variants` ask for?

    Raises:
        ImageError: with the resolver's words, or the packages that differ.
    """
    path = checkout.lock_path(variant)
    if not path.exists():
        raise ImageError(f"{path} is missing: kdgat image lock {variant.name}")
    locked = path.read_text()
    with tempfile.TemporaryDirectory(prefix="kdgat-lock-", ignore_cleanup_errors=True) as folder:
        overrides = Path(folder, "overrides.txt")
        overrides.write_text("\n".join(lines_of_overrides(variant, locked)) + "\n")
        arguments = ["pip", "install", "--dry-run", "--require-hashes", "--requirement", str(path), "--target", folder]
        arguments += ["--overrides", str(overrides)]
        _uv(arguments, variant, sources, f"{path.name} cannot be installed as it is")
    differences = compare_locks(locked, resolve_lock(checkout, variant, sources, read_pins(locked)))
    if differences:
        raise ImageError(
            f"{path.name} is not what its sources resolve to ({'; '.join(differences)}): "
            f"kdgat image lock {variant.name}"
        )
    return len(read_pins(locked))


def lines_of_overrides(variant: Variant, locked: str) -> list[str]:
    """Return the variant's overrides as the lock has them: with hashes alone the resolver takes nothing else."""
    pins, hashes = read_pins(locked), read_hashes(locked)
    return [
        " ".join([f"{name}=={pins[name]}", *(f"--hash={value}" for value in sorted(hashes[name]))])
        for name in map(requirement_name, variant.overrides)
        if name in pins
    ]


def compare_locks(locked: str, resolved: str) -> list[str]:
    """State which packages differ in version, or have no hash in common.

    Not every hash: files are added to a release after it was locked.
    """
    before, after = read_pins(locked), read_pins(resolved)
    hashes_before, hashes_after = read_hashes(locked), read_hashes(resolved)
    differences = [f"{name} {version} is not needed" for name, version in before.items() if name not in after]
    for name, version in after.items():
        if name not in before:
            differences.append(f"{name} {version} is not in it")
        elif before[name] != version:
            differences.append(f"{name} is {before[name]} there, {version} here")
        elif not hashes_before[name] & hashes_after[name]:
            differences.append(f"{name} {version} has other files now than when it was locked")
    return differences


def _uv(arguments: Iterable[str], variant: Variant, sources: PackageSources, failure: str) -> None:
    chosen = sources.for_variant(variant)
    # uv's own wheel puts the program beside the interpreter.
    program = Path(sysconfig.get_path("scripts"), "uv")
    if not program.exists():
        raise ImageError(f"{program} is missing: pip install 'kdgat[dev]' brings the resolver")
    command = [
        str(program), *arguments, "--python-version", PYTHON_MINOR, "--python-platform", PLATFORM,
        "--only-binary", ":all:", "--quiet", *chosen.uv_options(),
    ]  # fmt: skip
    try:
        answer = subprocess.run(
            command, capture_output=True, errors="replace", env=chosen.for_uv(), timeout=RESOLVE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"{failure}: the resolver took longer than {RESOLVE_TIMEOUT_S} s; is the index reachable?"
        ) from error
    if answer.returncode:
        raise ImageError(f"{failure}: {explain_resolver(answer.stderr)}")


def explain_resolver(text: str) -> str:
    """Shorten what a resolver says, and name the index where the missing thing is a build of torch."""
    printed = " ".join(text.split())[-600:]
    if "+cpu" in text:
        return f"{printed} (torch's builds for processors: export PIP_EXTRA_INDEX_URL={TORCH_CPU_INDEX})"
    return printed
