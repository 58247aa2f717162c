"""Apptainer as this project calls it: found, asked, and run.

Through spython go the version, `inspect` and `execute`. Not through it: `build`, where it hides a failure (0.3.14);
`test`, which it lacks; a command that takes over (`kdgat image exec`, jobs), whose signals would end at it; and what
must end in time (`kdgat.container.agreement`), for which it has no limit. It calls a program named `singularity`, ends
our process where a folder to bind is missing, and returns a failure in another form: all three are dealt with here.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.container import ImageError
from kdgat.container.layout import INSTALLED

PROGRAM_VARIABLE: Final = "KDGAT_APPTAINER"
INSTALLER: Final = "containers/install-apptainer.sh"
_INSTEAD: Final = (
    "; SingularityCE, which is here, cannot take its place: install-unprivileged.sh of Apptainer needs no rights, into "
    f"a folder that nodes see; then export {PROGRAM_VARIABLE}=FOLDER/bin/apptainer"
)
# As root Apptainer asks for every capability, and starts nothing where one is missing; with this it asks for none.
WITHOUT_PRIVILEGES: Final = {"APPTAINER_NO_PRIVS": "1"}
# mksquashfs and fakeroot of some distributions lie where only root's PATH leads.
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SIF_MAGIC: Final = b"SIF_MAGIC\0"
_SIF_MAGIC_OFFSET: Final = 32


@dataclass(frozen=True)
class Answer:
    """What a command in a container said, on both streams, and its exit status."""

    text: str
    status: int


@dataclass(frozen=True)
class ImageInspection:
    """What an image says of itself."""

    labels: Mapping[str, str]
    definition: str
    help: str


def find_apptainer() -> Path:
    """Return the program: what KDGAT_APPTAINER names, what PATH has, or what the installer put in its place.

    Raises:
        ImageError: if there is none.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ImageError(f"{PROGRAM_VARIABLE}={named} is no program: name the path of apptainer, or unset it")
        return Path(named).absolute()
    found = shutil.which("apptainer")
    if found is not None:
        return Path(found)
    if os.access(INSTALLED, os.X_OK):
        return INSTALLED
    raise ImageError(
        "apptainer is neither in PATH nor installed by kdgat: on Debian run, as root, "
        f"bash {INSTALLER}; on a cluster load its module (module load apptainer)"
        + (_INSTEAD if shutil.which("singularity") else "")
    )


def check_image(image: Path) -> Path:
    """Return the absolute path of an image after looking whether it is one.

    Raises:
        ImageError: if it is missing, a folder, or no SIF.
    """
    image = image.absolute()
    if image.is_dir():
        raise ImageError(f"{image} is a folder, not an image: name a .sif file")
    try:
        with image.open("rb") as file:
            file.seek(_SIF_MAGIC_OFFSET)
            magic = file.read(len(_SIF_MAGIC))
    except FileNotFoundError:
        raise ImageError(
            f"image {image} is not there: build it (kdgat image build cpu, or gpu), or correct its path"
        ) from None
    if magic != _SIF_MAGIC:
        raise ImageError(f"{image} is no SIF image: name a file that kdgat image build or apptainer build wrote")
    return image


def command_environment() -> dict[str, str]:
    """Return the environment in which Apptainer finds itself, its helpers, and no privilege that it would miss."""
    folders = [str(find_apptainer().parent), *os.environ.get("PATH", os.defpath).split(os.pathsep), *_SYSTEM_FOLDERS]
    return {**os.environ, **apptainer_variables(), "PATH": os.pathsep.join(dict.fromkeys(folders))}


def exec_command(image: Path, arguments: Sequence[str], *, nv: bool = False, binds: Sequence[str] = ()) -> list[str]:
    """Return the command that runs `arguments` in an image, for a process that becomes it.

    Raises:
        ImageError: if the image or what is to be bound is missing.
    """
    options = ["--nv"] if nv else []
    for bind in binds:
        options += ["--bind", check_bind(bind)]
    return [str(find_apptainer()), "exec", *options, str(check_image(image)), *arguments]


def check_bind(bind: str) -> str:
    """Return `bind`, as --bind takes it, if its source exists."""
    source = bind.split(":")[0]
    if not Path(source).exists():
        raise ImageError(f"--bind {bind}: {source} is not there: correct the path")
    return bind


def apptainer_version() -> str:
    """Return what the program says of itself, as `apptainer version 1.4.5`."""
    with _spython() as client:
        version = client.version()
    if not isinstance(version, str) or not version:
        raise ImageError(f"{find_apptainer()} does not say its version: {version!r}; install it again")
    return version


def execute(image: Path, arguments: Sequence[str], *, binds: Sequence[str] = (), options: Sequence[str] = ()) -> Answer:
    """Run a command in an image to its end and return what it said; a status other than 0 is an answer, too."""
    check_image(image)
    with _spython() as client:
        result = client.execute(
            str(image.absolute()), list(arguments), bind=[check_bind(bind) for bind in binds], options=list(options),
            return_result=True, singularity_options=["--silent"],  # it mixes both streams: mere remarks stay out
        )  # fmt: skip
    return Answer(_joined(result["message"]), int(result["return_code"]))


def inspect(image: Path) -> ImageInspection:
    """Read labels, definition and scripts of an image.

    Raises:
        ImageError: if there is no such image, or Apptainer cannot read it.
    """
    check_image(image)
    with _spython() as client:
        result = client.inspect(str(image.absolute()))
    if "attributes" not in result:
        raise ImageError(f"{image} cannot be read: {_joined(result.get('message', ''))}; build it again")
    found = result["attributes"]
    return ImageInspection(
        labels={str(name): str(value) for name, value in (found.get("labels") or {}).items()},
        definition=found.get("deffile") or "",
        help=found.get("helpfile") or "",
    )


def run_test(image: Path, *, nv: bool = False) -> int:
    """Run the image's own %test, with its words on this process's streams, and return its status."""
    arguments = [str(find_apptainer()), "test", *(["--nv"] if nv else []), str(check_image(image))]
    return subprocess.run(arguments, env=command_environment()).returncode


@contextmanager
def _spython() -> Iterator[Any]:
    """Let spython find a `singularity` that is our Apptainer, and give it Apptainer's environment meanwhile."""
    from spython.main import get_client

    environment, before = command_environment(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="kdgat-spython-", ignore_cleanup_errors=True) as folder:
        Path(folder, "singularity").symlink_to(find_apptainer())
        os.environ.update(environment, PATH=os.pathsep.join([folder, environment["PATH"]]))
        try:
            yield get_client(quiet=True)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _joined(message: Any) -> str:
    return message if isinstance(message, str) else "".join(str(part) for part in message)


def apptainer_variables(status: Path = Path("/proc/self/status"), uid: int | None = None) -> dict[str, str]:
    """Return what Apptainer needs in its environment to start containers as this user; nothing for most."""
    if (os.geteuid() if uid is None else uid) != 0:
        return {}
    try:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status.read_text(), flags=re.MULTILINE)
    except OSError:  # no Linux, and no Apptainer either
        return {}
    is_full = found is not None and int(found[1], 16) == (1 << (last + 1)) - 1
    return {} if is_full else dict(WITHOUT_PRIVILEGES)
