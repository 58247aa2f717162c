"""Real images for tests: the CPU image, built once for each lock and definition, and a tiny one, built in a second."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kdgat.container import ImageError
from kdgat.container.apptainer import command_environment, find_apptainer
from kdgat.container.build import CONTEXT, DEFINITION, Builder, build_image, build_in_folder, choose_base, work_folder
from kdgat.container.checkout import WHEEL_SOURCES, Checkout, find_checkout
from kdgat.container.layout import PREFIX
from kdgat.container.variants import LOCK, LOCK_IN_IMAGE, PYTHON_MINOR, VARIANTS, Variant
from tests.support.optional import lack

CONTAINERS = Path(__file__).parents[2] / "containers"
NUM_KEPT = 2
# The last of them are called by fakeroot, with which Apptainer runs %post.
TINY_PROGRAMS = ("sh", "sleep", "cat", "ls", "id", "env", "dd", "getopt", "sed", "cut", "uname", "rm", "kill", "chmod")
TINY_DEFINITION = """\
Bootstrap: scratch

%arguments
    VERSION=0

%files
{copies}
    requirements.lock {lock}

%post
    env > /seen
    echo made > /made

%test
    cat /made

%labels
    tiny.version {{{{ VERSION }}}}
"""


def require_apptainer() -> Path:
    """Put Apptainer and what builds need in PATH, installing it where that is possible; else skip, or fail in CI."""
    try:
        program = find_apptainer()
        complete = all(
            shutil.which(name, path=command_environment()["PATH"])
            for name in ("mksquashfs", "fakeroot", "mmdebstrap", "squashfuse")
        )
    except ImageError:
        complete = False
    if not complete:
        answer = subprocess.run(["bash", str(CONTAINERS / "install-apptainer.sh")], capture_output=True, text=True)
        if answer.returncode:
            lack(answer.stderr.strip()[-500:])
        program = find_apptainer()
    folders = os.environ["PATH"].split(os.pathsep)
    if str(program.parent) not in folders:
        os.environ["PATH"] = os.pathsep.join([str(program.parent), *folders])
    return program


def require_base() -> Path:
    """Return a base image made by containers/make-base.sh, once for each state of that script."""
    require_apptainer()
    script = CONTAINERS / "make-base.sh"
    with _cache() as folder:
        base = folder / f"base-{hashlib.sha256(script.read_bytes()).hexdigest()[:16]}.sif"
        if not base.exists():
            if os.geteuid() != 0:
                lack("a base image can only be made as root")
            answer = subprocess.run(["bash", str(script), str(base)], capture_output=True, text=True)
            if answer.returncode:
                lack(f"no base image: {answer.stderr.strip()[-500:]}")
    return base


def cpu_image() -> Path:
    """Return a CPU image of the lock, definition and base as they are now; built (minutes) where there is none yet.

    The kdgat in it is that of the day when it was built: tests of the code bind `checkout_binds` over it.
    """
    return _cpu_image(of_this_source=False)


def source_image() -> Path:
    """Return a CPU image that holds the checkout's source, too: one that fits this kdgat; built where there is none."""
    return _cpu_image(of_this_source=True)


def checkout_binds() -> list[str]:
    """Return what puts the checkout's kdgat, flows and site files in place of those in the image."""
    root, packages = find_checkout().root, f"{PREFIX}/lib/python{PYTHON_MINOR}/site-packages"
    targets = {"kdgat": packages, "flows": packages, "deployments/sites": f"{PREFIX}/share/kdgat"}
    return [f"{root / name}:{folder}/{Path(name).name}:ro" for name, folder in targets.items()]


def _cpu_image(of_this_source: bool) -> Path:
    base = require_base()
    checkout, variant = find_checkout(), VARIANTS["cpu"]
    with _cache() as folder:
        stem, source = f"kdgat-cpu-{content_key(checkout, variant, base)}", source_key(checkout)
        image = folder / f"{stem}-{source}.sif"
        built = [image] if of_this_source else [image, *sorted(folder.glob(f"{stem}-*.sif"))]
        for found in built:
            if found.exists():
                found.touch()  # the oldest is removed
                return found
        fresh = folder / f"fresh-{image.name}"
        build_image(checkout, variant, choose_base(str(base)), fresh, print)
        if source_key(checkout) != source:
            fresh.unlink()
            pytest.fail("the code changed while its image was built: let it rest, and run again", pytrace=False)
        fresh.with_name(f"{fresh.name}.log").replace(image.with_name(f"{image.name}.log"))
        fresh.replace(image)
        remove_older(folder, "kdgat-cpu-")
        remove_older(folder, "base-")
    return image


def content_key(checkout: Checkout, variant: Variant, base: Path) -> str:
    """Return what tells images of one variant apart, whatever the code in them: definition, lock and base."""
    content = hashlib.sha256(checkout.definition_path(variant).read_bytes() + checkout.lock_path(variant).read_bytes())
    content.update(base.name.encode())
    return content.hexdigest()[:16]


def source_key(checkout: Checkout) -> str:
    """Return what tells states of the source apart: names and contents of all that goes into the wheel."""
    content = hashlib.sha256()
    for name in WHEEL_SOURCES:
        for path in sorted([checkout.root / name, *(checkout.root / name).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                content.update(str(path.relative_to(checkout.root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]


def remove_older(folder: Path, prefix: str) -> None:
    """Remove all but the newest images whose names begin so, and what lies beside images that are gone."""
    images = sorted(folder.glob(f"{prefix}*.sif"), key=lambda path: path.stat().st_mtime)
    for old in images[:-NUM_KEPT]:
        old.unlink()
    for beside in [*folder.glob(f"{prefix}*.sif.*"), *folder.glob(f".{prefix}*.sif.*")]:
        if not (folder / f"{beside.name.lstrip('.').partition('.sif')[0]}.sif").exists():
            beside.unlink()


def make_tiny_root(folder: Path) -> Path:
    """Fill a folder with a shell and a few programs of this machine, and the libraries they need: 4 MB of a system."""
    programs = [Path(found) for name in TINY_PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    libraries = {Path(word) for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    libraries = {library for library in libraries if library.name[-1:] != ":"}
    for program in programs:
        target = folder / "bin" / program.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(program.resolve(), target)
    for library in libraries:
        target = folder / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)
    for name in ("dev", "etc", "proc", "root", "sys", "tmp", "usr/bin", "var/tmp", "home"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc" / "group").write_text("root:x:0:\n")
    return folder


def build_tiny_image(out: Path) -> Path:
    """Build a real image of a few megabytes: a shell, cat, sleep, id; a label, a test, a lock of one line."""
    require_apptainer()
    builder = Builder.here()
    with work_folder(None, builder) as folder:
        context = folder / CONTEXT
        root = make_tiny_root(context / "root")
        (context / LOCK).write_text("tiny==1\n")
        copies = [f"    root/{path.name} /{path.name}" for path in sorted(root.iterdir())]
        (context / DEFINITION).write_text(TINY_DEFINITION.format(copies="\n".join(copies), lock=LOCK_IN_IMAGE))
        build_in_folder(context, out, {"VERSION": "7"}, builder, out.with_name(f"{out.name}.log"), print)
    return out


@contextmanager
def _cache() -> Iterator[Path]:
    """Have the folder of test images to oneself."""
    folder = Path(os.environ.get("KDGAT_TEST_IMAGES") or Path.home() / ".cache" / "kdgat" / "test-images")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder
