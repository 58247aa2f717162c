"""Build an image: collect what goes in, let Apptainer build it, and put it in its place once its %test has passed.

Its base is a file on this machine, or an image of a registry, named so that it cannot change.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.base import sha256_of_file, sync_to_disk
from kdgat.base.files import replacing
from kdgat.container import ImageError
from kdgat.container.apptainer import apptainer_variables, check_image, command_environment, find_apptainer
from kdgat.container.checkout import Checkout
from kdgat.container.process import run_streaming
from kdgat.container.variants import LOCK, WHEELS, Variant
from kdgat.container.wheels import build_own_wheel, fetch_wheels, read_pip_sources

logger = logging.getLogger(__name__)

# Some user other than root: with its own namespace it needs no entry in /etc/subuid. Debian's `nobody`.
UNPRIVILEGED_UID: Final = 65534
CONTEXT: Final = "context"
DEFINITION: Final = "image.def"
_IMAGE: Final = "image.sif"
# One owner, so that anybody can unpack it where images cannot be mounted; zstd, because it is unpacked at each start.
_SQUASHFS: Final = "-all-root -no-xattrs -comp zstd -Xcompression-level 3"
_NUM_REMOVALS: Final = 5
_REMOVAL_PAUSE_S: Final = 0.5
# What else begins with APPTAINER_ or SINGULARITY_ is an option of `apptainer build` that nobody would see: one of them
# leaves %test out.
_KEPT_OF_APPTAINER: Final = {
    f"{prefix}_{name}"
    for prefix in ("APPTAINER", "SINGULARITY")
    for name in ("CACHEDIR", "CONFIGDIR", "DOCKER_USERNAME", "DOCKER_PASSWORD", "AUTHFILE")
}
_LEFT_OUT: Final = ("APPTAINER", "SINGULARITY", "PIP_", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD")
_NO_NAMESPACES: Final = "this machine allows no user namespaces: ask for user.max_user_namespaces above 0"
_NO_REGISTRY: Final = "the registry cannot be reached: make a base with containers/make-base.sh and name it with --base"
_MEANINGS: Final = {
    "No space left on device": "the disk is full: free space there, or name another folder with --work-folder",
    "mksquashfs not found": "mksquashfs is missing: apt-get install squashfs-tools",
    "fakeroot command not found": "fakeroot is missing: apt-get install fakeroot",
    "Could not create user namespace": _NO_NAMESPACES,
    "Failed to create user namespace": _NO_NAMESPACES,
    "no such host": _NO_REGISTRY,
    "dial tcp": _NO_REGISTRY,
}
_BASE_ARGUMENT: Final = re.compile(r"^\s*BASE=(\S+)$", re.MULTILINE)
_BASE_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")
_BASE_IN_CONTEXT: Final = "base.sif"


@dataclass(frozen=True)
class Base:
    """What an image is built upon: bootstrap agent and base for the definition's arguments, and what the labels say."""

    agent: str
    reference: str
    name: str
    digest: str
    file: Path | None = None


@dataclass(frozen=True)
class Builder:
    """As whom Apptainer builds: as us, or, where root may do less than root should, as somebody else."""

    uid: int | None

    @classmethod
    def here(cls) -> "Builder":
        """Choose for this process."""
        return cls(UNPRIVILEGED_UID if apptainer_variables() else None)

    def own(self, folder: Path) -> None:
        """Give a folder to whoever builds."""
        if self.uid is not None:
            os.chown(folder, self.uid, self.uid)

    def check_reach(self, folder: Path) -> None:
        """Refuse a folder that whoever builds cannot get to."""
        if self.uid is None:
            return
        for parent in (folder, *folder.parents):
            if not parent.stat().st_mode & 0o001:
                raise ImageError(
                    f"{folder} is closed to others by {parent}, and the build runs as uid {self.uid}, because root "
                    f"here lacks capabilities: name an open folder with --work-folder, as /var/tmp"
                )


def build_image(
    checkout: Checkout,
    variant: Variant,
    base: Base,
    out: Path,
    on_line: Callable[[str], None],
    work: Path | None = None,
) -> Path:
    """Build one image and return its path; an image that was there before stays until the new one is whole and tested.

    Args:
        on_line: gets each line of progress.
        work: where the parts lie meanwhile, several times the image's size; TMPDIR, else /var/tmp.

    Raises:
        ImageError: naming what is missing, or the last lines of what failed, and the log.
    """
    out = out.absolute()
    if out.is_dir():
        raise ImageError(f"--out {out} is a folder: name the file, as {out / (variant.file_stem + '.sif')}")
    find_apptainer()
    check_helpers(command_environment())
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    log.write_text("")
    builder = Builder.here()
    sources = read_pip_sources()
    revision = checkout.revision()  # before anything is copied: a change meanwhile is at most one that is not told
    wheels = fetch_wheels(checkout, variant, sources, log, on_line)
    with work_folder(work, builder) as folder:
        context = folder / CONTEXT
        (context / WHEELS).mkdir()
        try:
            for wheel in wheels.glob("*.whl"):
                _link_or_copy(wheel, context / WHEELS / wheel.name)
            wheel = build_own_wheel(checkout, context / WHEELS, sources, log)
            on_line(f"kdgat: {wheel.name} from {checkout.root}, revision {revision}")
            shutil.copy(checkout.lock_path(variant), context / LOCK)
            shutil.copy(checkout.definition_path(variant), context / DEFINITION)
            if base.file is not None:
                _link_or_copy(base.file, context / base.reference)
        except OSError as error:
            raise ImageError(f"{context}: {_explain(error, '--work-folder')}") from error
        on_line(f"building on {base.name} {base.digest}, in {folder}")
        build_in_folder(context, out, build_arguments(checkout, variant, base, revision), builder, log, on_line)
    return out


def build_arguments(checkout: Checkout, variant: Variant, base: Base, revision: str) -> dict[str, str]:
    """Return what the definition's template variables stand for."""
    return {
        "AGENT": base.agent,
        "BASE": base.reference,
        "BASE_NAME": base.name,
        "BASE_DIGEST": base.digest,
        "VERSION": checkout.version,
        "REVISION": revision,
        "SOURCE": checkout.source(),
        "LOCK_SHA256": hashlib.sha256(checkout.lock_path(variant).read_bytes()).hexdigest(),
    }


def check_helpers(environment: Mapping[str, str]) -> None:
    """Refuse to begin without the programs that Apptainer will call at the end."""
    needed = {"mksquashfs": "squashfs-tools", "fakeroot": "fakeroot"}
    missing = [program for program in needed if shutil.which(program, path=environment["PATH"]) is None]
    if missing:
        packages = " ".join(needed[program] for program in missing)
        raise ImageError(f"{', '.join(missing)} missing: Apptainer needs it to build. apt-get install {packages}")


def build_environment(folder: Path, builder: Builder) -> dict[str, str]:
    """Return the environment of the build: nothing in it changes what comes out."""
    kept = {
        name: value
        for name, value in command_environment().items()
        if name in _KEPT_OF_APPTAINER or not name.startswith(_LEFT_OUT)
    }
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    builder.own(temporary)
    kept |= {"TMPDIR": str(temporary), "APPTAINER_TMPDIR": str(temporary)}
    if builder.uid is not None:
        # Its own: that of root is closed to it.
        kept |= {"HOME": str(temporary), "APPTAINER_CACHEDIR": str(temporary / "cache"), "USER": "nobody"}
    return kept


def build_in_folder(
    context: Path, out: Path, arguments: Mapping[str, str], builder: Builder, log: Path, on_line: Callable[[str], None]
) -> None:
    """Let Apptainer build the definition `image.def` that lies in `context` with what it copies, then replace `out`.

    Raises:
        ImageError: with the last lines of the build; `out` is as it was.
    """
    _open_to_others(context)
    command_line = [str(find_apptainer()), "build", f"--mksquashfs-args={_SQUASHFS}"]
    command_line += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    ending = run_streaming(
        [*command_line, _IMAGE, DEFINITION], build_environment(context.parent, builder), log, on_line,
        folder=context, uid=builder.uid,
    )  # fmt: skip
    if ending.status == 0 and (context / _IMAGE).exists():
        put_in_place(context / _IMAGE, out)
        return
    output = "\n".join(ending.last_lines)
    meaning = next((meaning for line, meaning in _MEANINGS.items() if line in output), "")
    raise ImageError(
        f"apptainer build ended with status {ending.status}{f': {meaning}' if meaning else ''}\n"
        f"its last lines:\n{output}\nall of them: {log}"
    )


def _explain(error: OSError, option: str) -> str:
    """State what the system refused, and which option names another place."""
    elsewhere = f"name another folder with {option}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: free space there, or {elsewhere}"
    return f"{error.strerror or error}: correct that, or {elsewhere}"


def _open_to_others(context: Path) -> None:
    """Let whoever builds read what goes in, whatever this process's umask took from it.

    A file with other names is somebody's own, and is readable.
    """
    ours = ["(", "-type", "d", "-o", "-type", "f", "-links", "1", ")"]
    subprocess.run(["find", context, "-mindepth", "1", *ours, "-exec", "chmod", "a+rX", "{}", "+"], check=True)


@contextmanager
def work_folder(work: Path | None, builder: Builder) -> Iterator[Path]:
    """Make a folder with a folder `context` in it for whoever builds, and remove both in the end."""
    parent = (work or Path(os.environ.get("TMPDIR") or "/var/tmp")).absolute()
    if not parent.is_dir():
        raise ImageError(f"{parent} is no folder: name one with --work-folder")
    builder.check_reach(parent)
    folder = Path(tempfile.mkdtemp(prefix="kdgat-image-", dir=parent))
    try:
        folder.chmod(0o755)
        (folder / CONTEXT).mkdir()
        builder.own(folder / CONTEXT)
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a tree in which Apptainer may have left folders without the right to write.

    What stays is named and no error: it would take the place of the one that ended the build.
    """
    open_folders = ["find", str(folder), "-type", "d", "!", "-perm", "-u=rwx", "-exec", "chmod", "u+rwx", "{}", ";"]
    for _ in range(_NUM_REMOVALS):
        subprocess.run(open_folders, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVAL_PAUSE_S)  # something that was ended still writes, or an NFS server is behind
    logger.warning("%s could not be removed: remove it by hand (rm -rf)", folder)


def _link_or_copy(source: Path, target: Path) -> None:
    """Take a file over without copying it, where one filesystem holds both and anybody may read it."""
    source = source.resolve()
    if source.stat().st_mode & 0o004:
        try:
            os.link(source, target)
            return
        except OSError:  # another filesystem, or one without links: copying does the same
            pass
    shutil.copyfile(source, target)
    target.chmod(0o644)


def put_in_place(image: Path, out: Path) -> None:
    """Replace `out` by a copy of what was built, whole or not at all; ImageError names what the system refused."""
    try:
        with replacing(out) as fresh:
            shutil.copyfile(image, fresh)
            fresh.chmod(0o755)
            sync_to_disk(fresh)
    except OSError as error:
        raise ImageError(f"{out}: {_explain(error, '--out')}") from error
    sync_to_disk(out.parent)


def default_base(definition: Path) -> str:
    """Return the base that a definition names in its %arguments."""
    found = _BASE_ARGUMENT.search(definition.read_text())
    if found is None:
        raise ImageError(f"{definition} names no base: write BASE=REPOSITORY@sha256:... into its %arguments")
    return found[1]


def choose_base(text: str) -> Base:
    """Understand what `--base` says: a .sif file, or `[docker://]repository@sha256:...`.

    Raises:
        ImageError: if the file is missing, or the reference may mean another image tomorrow.
    """
    if text.startswith("docker://"):
        return _docker(text.removeprefix("docker://"))
    if "://" in text:
        raise ImageError(f"--base {text}: only docker:// and .sif files can be a base")
    if text.endswith(".sif") or text.startswith((".", "/", "~")) or Path(text).exists():
        path = check_image(Path(text).expanduser())
        return Base("localimage", _BASE_IN_CONTEXT, path.name, f"sha256:{sha256_of_file(path)}", path)
    return _docker(text)


def _docker(reference: str) -> Base:
    found = _BASE_DIGEST.search(reference)
    if found is None:
        name = reference.partition("@")[0]
        raise ImageError(
            f"--base {reference} has no digest, so it may be another image tomorrow: write "
            f"{_without_tag(name)}@sha256:... (skopeo inspect docker://{name} says it)"
        )
    name = _without_tag(reference[: found.start()])
    # A tag beside the digest says nothing, and Apptainer refuses both together.
    return Base("docker", f"{name}@{found[1]}", name, found[1])


def _without_tag(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
