"""Apptainer as this project calls it: found, asked, and run.

Through spython go the calls for which it works and adds something: the version and `inspect` (labels, definition and
scripts as one dictionary) for `kdgat image inspect`, and `execute` (a command whose words and status the caller wants)
for its `--lock` and the tests. Not through it:

* `build`: spython 0.3.14 answers a failed build with None, ignores `return_result`, and prefixes sudo unless told
  otherwise. `kdgat.container.build` starts the program itself, streams what it says, and looks at its status.
* `test`: spython has no such call.
* a command that takes over (`kdgat image exec`, jobs): spython stands between, so signals and a status by signal would
  end there. `exec_command` are for a process that becomes Apptainer.
* what must end in time (`kdgat.container.agreement` asks an image before a run): spython sets no limit, and mixes what
  was asked for with what is only remarked.
* instances: nothing here needs one. A stage is a process that its job starts and the scheduler ends; an instance would
  stay behind.
* definitions: they are written by hand, and Apptainer itself reads them.

spython calls a program named `singularity`, ends our process where a folder to bind is missing, and takes a failure for
a result in another form: all three are dealt with here.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.container.errors import ImageError
from kdgat.container.layout import INSTALLED
from kdgat.container.privileges import apptainer_variables

PROGRAM_VARIABLE: Final = "KDGAT_APPTAINER"
INSTALLER: Final = "containers/install-apptainer.sh"
# mksquashfs and fakeroot of some distributions lie where only root's PATH leads.
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SIF_MAGIC: Final = b"SIF_MAGIC\0"
_SIF_MAGIC_OFFSET: Final = 32


class ApptainerError(ImageError):
    """Apptainer is missing, or refused what it was asked; the text holds its words and the fix."""


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
    environment: str
    runscript: str
    test: str
    help: str


def find_apptainer() -> Path:
    """Return the program: what KDGAT_APPTAINER names, what PATH has, or what the installer put in its place.

    Raises:
        ApptainerError: if there is none.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ApptainerError(f"{PROGRAM_VARIABLE}={named} is no program: name the path of apptainer, or unset it")
        return Path(named).absolute()
    found = shutil.which("apptainer")
    if found is not None:
        return Path(found)
    if os.access(INSTALLED, os.X_OK):
        return INSTALLED
    raise ApptainerError(
        "apptainer is neither in PATH nor installed by kdgat: on Debian run, as root, "
        f"bash {INSTALLER}; on a cluster load its module (module load apptainer)"
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
        raise ImageError(f"image {image} is not there: build it (kdgat image build), or correct its path") from None
    if magic != _SIF_MAGIC:
        raise ImageError(f"{image} is no SIF image: name a file that kdgat image build or apptainer build wrote")
    return image


def command_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which Apptainer finds itself, its helpers, and no privilege that it would miss."""
    base = os.environ if base is None else base
    folders = [str(find_apptainer().parent), *base.get("PATH", os.defpath).split(os.pathsep), *_SYSTEM_FOLDERS]
    return {**base, **apptainer_variables(), "PATH": os.pathsep.join(dict.fromkeys(folders))}


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
        raise ApptainerError(f"{find_apptainer()} does not say its version: {version!r}; install it again")
    return version


def execute(
    image: Path,
    arguments: Sequence[str],
    *,
    nv: bool = False,
    binds: Sequence[str] = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a command in an image to its end and return what it said; a status other than 0 is an answer, too."""
    check_image(image)
    with _spython() as client:
        result = client.execute(
            str(image.absolute()), list(arguments), bind=[check_bind(bind) for bind in binds], nv=nv,
            options=list(options), return_result=True, environ=command_environment(environment),
            singularity_options=["--silent"],  # spython mixes both streams: what Apptainer only remarks stays out
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
        raise ApptainerError(f"{image} cannot be read: {_joined(result.get('message', ''))}; build it again")
    found = result["attributes"]
    return ImageInspection(
        labels={str(name): str(value) for name, value in (found.get("labels") or {}).items()},
        definition=found.get("deffile") or "",
        environment=_joined((found.get("environment") or {}).values()),
        runscript=found.get("runscript") or "",
        test=found.get("test") or "",
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

    environment = command_environment()
    if not (find_apptainer().parent / "singularity").exists():
        environment["PATH"] = os.pathsep.join([str(_linked_as_singularity()), environment["PATH"]])
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield get_client(quiet=True)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _linked_as_singularity() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdgat" / "spython"
    cache.mkdir(parents=True, exist_ok=True)
    link = cache / "singularity"
    fresh = cache / f".singularity.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(find_apptainer())
    fresh.replace(link)
    return cache


def _joined(message: Any) -> str:
    return message if isinstance(message, str) else "".join(str(part) for part in message)
