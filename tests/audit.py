"""`python -m tests.audit`: is what is installed pinned, of a licence that fits, and without known faults?

The first three checks need no network: installed versions are those of constraints.txt, every licence can be used with
Apache-2.0, and no version is one that is known to be bad. pip-audit asks for vulnerabilities. Where its service does
not answer, for all packages or for some, the audit says so and does not fail by that, unless it is told to by
--require-answer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

CONSTRAINTS: Final = Path(__file__).parents[1] / "constraints.txt"
TIMEOUT_S: Final = 10  # of one connection
NUM_REASONS: Final = 3  # are printed of packages without an answer; their number always is
UNPINNED: Final = frozenset({"pip", "setuptools", "wheel", "kdgat"})  # what makes an environment, and this package
OF_CUDA: Final = ("nvidia-", "cuda-", "triton")  # come with a torch for CUDA, which pins them itself

KNOWN_BAD: Final = {
    ("lightning", "2.6.2"): "a compromised release that stole credentials; 2.6.4 and later are clean",
    ("lightning", "2.6.3"): "a compromised release that stole credentials; 2.6.4 and later are clean",
}
ACCEPTED: Final[dict[str, str]] = {}  # identifier of a vulnerability -> why it does not concern kdgat

# Of metadata, classifiers or an SPDX expression; what matches none of these is read by a person, and listed below.
_PERMISSIVE: Final = re.compile(
    r"\b(Apache|MIT|BSD|0BSD|ISC|PSF|Python Software Foundation|Python-2\.0|CNRI-Python|Zlib|Unlicense|Public Domain|"
    r"HPND|Artistic|CC0|BSL|Boost|NVIDIA Proprietary|LicenseRef-NVIDIA)",
    re.IGNORECASE,
)
# Used as it is, as a library beside ours, and changed nowhere.
_WEAK: Final = re.compile(r"\b(LGPL|Lesser General Public|MPL|Mozilla Public)", re.IGNORECASE)
_STRONG: Final = re.compile(r"\b(A?GPL|Affero|(?<!Lesser )General Public License)", re.IGNORECASE)
LICENCES: Final = {  # of packages whose metadata do not say, or offer a choice
    "spython": "Mozilla Public License 2.0",  # its metadata say "LICENSE", which is the name of the file
    "text-unidecode": "Artistic License",  # offered beside the GPL
    "cuda-toolkit": "NVIDIA Proprietary",  # a list of versions that fit together, without code
}


class AuditError(ValueError):
    """The service of vulnerabilities does not answer."""


def read_pins(path: Path) -> dict[str, str]:
    """Return the version of every package that a file of constraints pins."""
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, separator, version = line.partition("#")[0].partition(";")[0].strip().partition("==")
        if separator:
            pins[canonicalize_name(name)] = version.strip()
    return pins


def installed() -> dict[str, metadata.Distribution]:
    """Return what is installed for this Python, by canonical name."""
    return {canonicalize_name(one.metadata["Name"]): one for one in metadata.distributions() if one.metadata["Name"]}


def unlike_pins(versions: Mapping[str, str], pins: Mapping[str, str]) -> Iterator[str]:
    """Say which packages are installed in another version than is pinned, or are not pinned."""
    for name, version in sorted(versions.items()):
        if name in UNPINNED or name.startswith(OF_CUDA):
            continue
        pinned = pins.get(name)
        if pinned is None:
            yield f"{name} {version} is installed and not in constraints.txt: pin it, or remove what brings it"
        elif version.partition("+")[0] != pinned.partition("+")[0]:
            yield f"{name} {version} is installed, constraints.txt says {pinned}: make install in a fresh .venv"


def known_bad(versions: Mapping[str, str]) -> Iterator[str]:
    """Say which installed versions must not be used."""
    for name, version in sorted(versions.items()):
        if (reason := KNOWN_BAD.get((name, version))) is not None:
            yield f"{name} {version}: {reason}"


def licence_of(about: Any) -> str:
    """Return what a distribution says of its licence, in the most exact words that it has."""
    stated = [one for one in about.get_all("Classifier") or () if one.startswith("License ::")]
    classifiers = [one.rpartition(" :: ")[2] for one in stated]
    words = [
        about.get("License-Expression"),
        *classifiers,
        (about.get("License") or "").strip().partition("\n")[0][:80],
    ]
    return " / ".join(dict.fromkeys(word for word in words if word and word != "OSI Approved"))


def unfit_licences(licences: Mapping[str, str]) -> Iterator[str]:
    """Say which packages cannot be used together with Apache-2.0, or do not say whether they can."""
    for name, licence in sorted(licences.items()):
        said = LICENCES.get(name, licence)
        if _STRONG.search(said):
            yield (
                f"{name}: its licence {said!r} would be that of all of kdgat: replace it, or add to LICENCES "
                "which other licence it offers"
            )
        elif not _PERMISSIVE.search(said) and not _WEAK.search(said):
            yield f"{name}: its licence {said or 'not stated'!r} is not known here: read it, and add it to LICENCES"


def vulnerabilities(options: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Return a sentence for each known vulnerability of what is installed, and why which packages were not answered.

    `options` are pip-audit's, for another service or other packages.

    Raises:
        AuditError: if the service cannot be reached.
    """
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--skip-editable"]
    ended = subprocess.run(
        [*command, "--timeout", str(TIMEOUT_S), *options], capture_output=True, text=True, check=False
    )
    try:
        packages = [one for one in json.loads(ended.stdout)["dependencies"] if one["name"] not in UNPINNED]
    except ValueError as error:
        reason = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        raise AuditError(reason) from error
    unanswered = {
        one["name"]: one["skip_reason"] for one in packages if "skip_reason" in one and one["name"] != "kdgat"
    }
    found = [
        sentence
        for one in packages
        for about in one.get("vulns", ())
        if (sentence := _sentence(one, about)) is not None
    ]
    return found, unanswered


def _sentence(package: Mapping[str, Any], about: Mapping[str, Any]) -> str | None:
    identifiers = [about["id"], *about.get("aliases", ())]
    if any(identifier in ACCEPTED for identifier in identifiers):
        return None
    fixed = ", ".join(about.get("fix_versions", ())) or "no version yet"
    return f"{package['name']} {package['version']}: {' '.join(identifiers)}, fixed in {fixed}"


def main(words: list[str] | None = None) -> int:
    """Check everything, print one line per fault; return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument(
        "--require-answer", action="store_true", help="fail where no service answers, also for one package"
    )
    given, options = parser.parse_known_args(words)  # what is not ours is pip-audit's
    found = installed()
    versions = {name: one.version for name, one in found.items() if name != "kdgat"}
    licences = {name: licence_of(one.metadata) for name, one in found.items() if name != "kdgat"}
    faults = [*unlike_pins(versions, read_pins(CONSTRAINTS)), *known_bad(versions), *unfit_licences(licences)]
    print(f"{len(versions)} packages: versions against constraints.txt, known bad versions, licences")
    try:
        vulnerable, unanswered = vulnerabilities(options)
        faults += vulnerable
        for reason in list(unanswered.values())[:NUM_REASONS]:
            print(f"vulnerabilities: NOT CHECKED: {reason}")
        num_unanswered = len(unanswered)
    except AuditError as error:
        print(f"vulnerabilities: NOT CHECKED: {error}")
        num_unanswered = len(versions)
    if num_unanswered and given.require_answer:
        faults.append(f"vulnerabilities were not checked of {num_unanswered} packages, and --require-answer was given")
    _print_all(faults)
    print(f"vulnerabilities: {num_unanswered} of {len(versions)} packages not answered")
    return 1 if faults else 0


def _print_all(faults: Iterable[str]) -> None:
    lines = [f"error: {fault}" for fault in faults]
    print("\n".join(lines) if lines else "no fault found")


if __name__ == "__main__":
    sys.exit(main())
