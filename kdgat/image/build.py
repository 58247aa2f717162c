"""Build an image: collect what goes in, let Apptainer build it, and put it in its place once its %test has passed."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.image.apptainer import command_environment, find_apptainer
from kdgat.image.base import Base
from kdgat.image.checkout import Checkout
from kdgat.image.errors import ImageError
from kdgat.image.process import run_streaming
from kdgat.image.recipe import LOCK, WHEELS, Variant, define
from kdgat.image.sources import read_pip_sources
from kdgat.image.wheels import build_own_wheel, fetch_wheels
from kdgat.stage.files import sync_to_disk, temporary_path
from kdgat.stage.privileges import apptainer_variables

# Some user other than root: with its own namespace it needs no entry in /etc/subuid. Debian's `nobody`.
UNPRIVILEGED_UID: Final = 65534
CONTEXT: Final = "context"
DEFINITION: Final = "image.def"
_IMAGE: Final = "image.sif"
# One owner, so that anybody can unpack it where images cannot be mounted; zstd, because it is unpacked at each start.
_SQUASHFS: Final = "-all-root -no-xattrs -comp zstd -Xcompression-level 3"
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


class BuildError(ImageError):
    """An image was not built; the text holds the last lines of the build, where its log is, and the fix if known."""


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
                raise BuildError(
                    f"{folder} is closed to others by {parent}, and the build runs as uid {self.uid}, because root "
                    f"here lacks capabilities: name an open folder with --work-folder, as /var/tmp"
                )


def build_image(
    checkout: Checkout, variant: Variant, base: Base, out: Path, tell: Callable[[str], None], work: Path | None = None
) -> Path:
    """Build one image and return its path; an image that was there before stays until the new one is whole and tested.

    Args:
        tell: gets each line of progress.
        work: where the parts lie meanwhile, several times the image's size; TMPDIR, else /var/tmp.

    Raises:
        ImageError: naming what is missing, or the last lines of what failed, and the log.
    """
    out = out.absolute()
    if out.is_dir():
        raise BuildError(f"--out {out} is a folder: name the file, as {out / (variant.file_stem + '.sif')}")
    find_apptainer()
    check_helpers(command_environment())
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    log.write_text("")
    builder = Builder.here()
    sources = read_pip_sources()
    wheels = fetch_wheels(checkout, variant, sources, log, tell)
    with work_folder(work, builder) as folder:
        context = folder / CONTEXT
        (context / WHEELS).mkdir()
        try:
            for wheel in wheels.glob("*.whl"):
                _link_or_copy(wheel, context / WHEELS / wheel.name)
            build_own_wheel(checkout, context / WHEELS, sources, log, tell)
            shutil.copy(checkout.lock_path(variant), context / LOCK)
            if base.file is not None:
                _link_or_copy(base.file, context / base.reference)
        except OSError as error:
            raise BuildError(f"{context}: {error.strerror}; {_meaning(str(error))}") from error
        (context / DEFINITION).write_text(define(variant).render())
        tell(f"building on {base.name} {base.digest}, in {folder}")
        build_in_folder(context, out, build_arguments(checkout, variant, base), builder, log, tell)
    return out


def build_arguments(checkout: Checkout, variant: Variant, base: Base) -> dict[str, str]:
    """Return what the definition's template variables stand for."""
    return {
        "AGENT": base.agent,
        "BASE": base.reference,
        "BASE_NAME": base.name,
        "BASE_DIGEST": base.digest,
        "VERSION": checkout.version,
        "REVISION": checkout.revision(),
        "SOURCE": checkout.source(),
        "LOCK_SHA256": hashlib.sha256(checkout.lock_path(variant).read_bytes()).hexdigest(),
    }


def check_helpers(environment: Mapping[str, str]) -> None:
    """Refuse to begin without the programs that Apptainer will call at the end."""
    needed = {"mksquashfs": "squashfs-tools", "fakeroot": "fakeroot"}
    missing = [program for program in needed if shutil.which(program, path=environment["PATH"]) is None]
    if missing:
        packages = " ".join(needed[program] for program in missing)
        raise BuildError(f"{', '.join(missing)} missing: Apptainer needs it to build. apt-get install {packages}")


def build_environment(folder: Path, builder: Builder) -> dict[str, str]:
    """Return the environment of the build: nothing in it changes what comes out."""
    kept = {
        name: value
        for name, value in command_environment().items()
        if not name.startswith(("APPTAINERENV_", "SINGULARITYENV_", "PIP_", "APPTAINER_BIND", "SINGULARITY_BIND"))
        and name not in ("APPTAINER_NO_PRIVS", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD")
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
    context: Path,
    out: Path,
    arguments: Mapping[str, str],
    builder: Builder,
    log: Path,
    tell: Callable[[str], None],
) -> None:
    """Let Apptainer build the definition `image.def` that lies in `context` with what it copies, then replace `out`.

    Raises:
        BuildError: with the last lines of the build; `out` is as it was.
    """
    words = [str(find_apptainer()), "build", f"--mksquashfs-args={_SQUASHFS}"]
    words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    ending = run_streaming(
        [*words, _IMAGE, DEFINITION], build_environment(context.parent, builder), log, tell,
        folder=context, uid=builder.uid,
    )  # fmt: skip
    if ending.status == 0 and (context / _IMAGE).exists():
        _put_in_place(context / _IMAGE, out)
        return
    said = "\n".join(ending.last_lines)
    meaning = _meaning(said)
    raise BuildError(
        f"apptainer build ended with status {ending.status}{f': {meaning}' if meaning else ''}\n"
        f"its last lines:\n{said}\nall of them: {log}"
    )


def _meaning(said: str) -> str:
    return next((meaning for words, meaning in _MEANINGS.items() if words in said), "")


@contextmanager
def work_folder(work: Path | None, builder: Builder) -> Iterator[Path]:
    """Make a folder with a folder `context` in it for whoever builds, and remove both in the end."""
    parent = (work or Path(os.environ.get("TMPDIR") or "/var/tmp")).absolute()
    if not parent.is_dir():
        raise BuildError(f"{parent} is no folder: name one with --work-folder")
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
    """Remove a tree in which Apptainer may have left folders without the right to write."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(root, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o700)
    shutil.rmtree(folder)


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


def _put_in_place(image: Path, out: Path) -> None:
    fresh = temporary_path(out)
    try:
        shutil.copyfile(image, fresh)
        fresh.chmod(0o755)
        sync_to_disk(fresh)
        fresh.replace(out)
    except OSError as error:
        raise BuildError(f"{out}: {error.strerror}; {_meaning(str(error))}") from error
    finally:
        fresh.unlink(missing_ok=True)
    sync_to_disk(out.parent)
