"""`kdgat image`: make container images, look into them, and run things in them."""

import os
import subprocess
import sys
import tempfile
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

app = typer.Typer(no_args_is_help=True)

PARTS_OF_TEST: Final = ("card", "numbers", "rapids")  # of `kdgat doctor gpu`


class VariantName(StrEnum):
    """The images there are."""

    CPU = "cpu"
    GPU = "gpu"
    GPU_CUDA13 = "gpu-cuda13"


VariantWord = Annotated[
    VariantName, typer.Argument(metavar="cpu|gpu|gpu-cuda13", help="Which image.", show_default=False)
]
Image = Annotated[Path, typer.Argument(metavar="IMAGE", help="A .sif file.", show_default=False)]
Nv = Annotated[bool, typer.Option("--nv", help="Make the node's GPUs and driver visible.")]
CheckoutFolder = Annotated[
    Path | None, typer.Option("--checkout", help="Source tree; by default the one that this command is run from.")
]


@app.command()
def build(
    variant: VariantWord,
    base: Annotated[
        str | None,
        typer.Option(help="A .sif file (containers/make-base.sh makes one), or REPOSITORY@sha256:...", metavar="BASE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The image; by default kdgat-cpu.sif, kdgat.sif or kdgat-cuda13.sif.")
    ] = None,
    work_folder: Annotated[
        Path | None, typer.Option(help="For the parts meanwhile; by default TMPDIR, else /var/tmp.")
    ] = None,
    checkout: CheckoutFolder = None,
) -> None:
    """Build an image and run its tests; a former image stays until the new one has passed them."""
    from kdgat.base import check_file, check_folder
    from kdgat.container.build import build_image, choose_base, default_base
    from kdgat.container.checkout import find_checkout
    from kdgat.container.process import signals_as_exit
    from kdgat.container.variants import find_variant

    tree, chosen = find_checkout(checkout), find_variant(variant.value)
    image = out or Path(f"{chosen.file_stem}.sif")
    check_file(image, "--out")
    check_folder(work_folder or Path(tempfile.gettempdir()), "--work-folder")
    before = _identity(image)
    try:
        with signals_as_exit():
            found = choose_base(base or default_base(tree.definition_path(chosen)))
            path = build_image(tree, chosen, found, image, lambda line: typer.echo(line, err=True), work_folder)
    except SystemExit:
        is_new = _identity(image) != before
        typer.echo(f"interrupted: {image} is {'the new one, tested' if is_new else 'as it was before'}", err=True)
        raise
    typer.echo(path)


def _identity(image: Path) -> tuple[int, int] | None:
    try:
        state = image.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


@app.command("test")
def run_image_test(image: Image, nv: Nv = False) -> None:
    """Run the image's own test: every import, and every version against the lock inside; with --nv, on the GPU as well.

    There networks compute loss and gradient as on the processor, and cuDF, cuML and cuGraph a known result (minutes).
    """
    from kdgat.container.apptainer import command_environment, exec_command, run_test

    status = run_test(image, nv=nv)
    if nv and status == 0:
        with tempfile.TemporaryDirectory(prefix="kdgat-image-test-", ignore_cleanup_errors=True) as folder:
            command = ["python", "-m", "kdgat.gpu", *(f"--part={name}" for name in PARTS_OF_TEST), "--out", folder]
            command = exec_command(image, command, nv=True, binds=[folder])
            status = subprocess.run(command, env=command_environment()).returncode
    raise typer.Exit(status)


@app.command()
def inspect(
    image: Image,
    definition: Annotated[bool, typer.Option("--definition", help="Print the definition it was built from.")] = False,
    lock: Annotated[bool, typer.Option("--lock", help="Print the lock inside: every package, with hashes.")] = False,
) -> None:
    """Show digest, labels, the definition that an image was built from, and the lock in it."""
    from kdgat.container import ImageError, apptainer
    from kdgat.container.agreement import image_digest
    from kdgat.container.variants import LOCK_IN_IMAGE

    if lock:
        answer = apptainer.execute(image, ["cat", LOCK_IN_IMAGE])
        if answer.status:
            raise ImageError(
                f"{image} has no lock inside ({answer.text.strip()}): kdgat image build makes one that has"
            )
        typer.echo(answer.text, nl=False)
        return
    found = apptainer.inspect(image)
    if definition:
        typer.echo(found.definition)
        return
    labels = {
        "sha256": image_digest(image),
        "size": f"{image.stat().st_size / 1e6:.0f} MB",
        "apptainer": f"{apptainer.apptainer_version().rpartition(' ')[2]} on this machine",
        **found.labels,
    }
    width = max(len(name) for name in labels)
    for name, value in sorted(labels.items(), key=lambda item: ("." in item[0], item[0])):
        typer.echo(f"{name:{width}}  {value}")
    if found.help.strip():
        typer.echo(f"\n{textwrap.dedent(found.help).strip()}")


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    image: Image,
    arguments: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.", show_default=False)],
    nv: Nv = False,
    bind: Annotated[
        list[str] | None, typer.Option("--bind", "-B", help="SOURCE[:TARGET[:ro]] to see inside. Repeatable.")
    ] = None,
) -> None:
    """Run a command in an image, in place of this one: its status and its signals are the command's."""
    from kdgat.container.apptainer import command_environment, exec_command

    command = exec_command(image, arguments[1:] if arguments[0] == "--" else arguments, nv=nv, binds=bind or ())
    sys.stdout.flush()
    os.execve(command[0], command, command_environment())


@app.command()
def check(image: Image) -> None:
    """Compare Python, packages and kdgat in an image with those that run this command."""
    from kdgat.container.agreement import check_agreement

    notes = check_agreement(image)
    typer.echo(f"{image} fits the kdgat that runs this command; sha256 {notes.sha256}")


@app.command()
def lock(
    variant: VariantWord,
    verify: Annotated[
        bool, typer.Option("--check", help="Write nothing; let the resolver confirm the lock without installing.")
    ] = False,
    checkout: CheckoutFolder = None,
) -> None:
    """Resolve what goes into an image, with hashes, for its platform (x86-64, Python 3.11)."""
    from kdgat.container.checkout import find_checkout
    from kdgat.container.lock import check_lock, write_lock
    from kdgat.container.variants import find_variant
    from kdgat.container.wheels import read_pip_sources

    tree, chosen, sources = find_checkout(checkout), find_variant(variant.value), read_pip_sources()
    if verify:
        typer.echo(f"{tree.lock_path(chosen)}: {check_lock(tree, chosen, sources)} packages, complete and as resolved")
    else:
        typer.echo(write_lock(tree, chosen, sources))
