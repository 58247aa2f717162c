"""A build streams, explains its failure, and never leaves a partial image; real Apptainer, tiny images."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kdgat.container import ImageError
from kdgat.container.apptainer import execute, inspect
from kdgat.container.build import (
    Base,
    Builder,
    build_environment,
    build_image,
    build_in_folder,
    check_helpers,
    put_in_place,
    work_folder,
)
from kdgat.container.checkout import find_checkout
from kdgat.container.variants import VARIANTS
from tests.container.builds import HEAD, build
from tests.support.optional import lack

LEAKS = ("PIP_INDEX_URL", "APPTAINERENV_PASSWORD", "SECRET_TOKEN", "PYTHONPATH", "SINGULARITYENV_PASSWORD")
OPTIONS = ("NOTEST", "SECTION", "SANDBOX", "FAKEROOT", "NV", "MKSQUASHFS_ARGS", "BINDPATH", "NO_PRIVS")


@dataclass(frozen=True)
class Built:
    """An image, and what was told while it was built."""

    image: Path
    told: list[str]


@pytest.fixture(scope="module")
def built(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An image built by a user who closes files to others and sets what would change a build, or must not get in."""
    out = tmp_path_factory.mktemp("built") / "image.sif"
    text = HEAD + (
        "%arguments\n    V=0\n%files\n    wheels /wheels\n%post\n    env > /seen; echo made > /made\n"
        "%labels\n    version {{ V }}\n%help\n    Helps.\n"
    )
    told: list[str] = []
    umask = os.umask(0o077)
    try:
        with pytest.MonkeyPatch.context() as patch, work_folder(None, Builder.here()) as folder:
            for name in LEAKS:
                patch.setenv(name, "do-not-leak")
            for name in (f"{prefix}_{option}" for prefix in ("APPTAINER", "SINGULARITY") for option in OPTIONS):
                patch.setenv(name, "1")
            patch.setenv("APPTAINER_BINDPATH", str(out.parent))
            context = folder / "context"
            shutil.copyfile(tiny, context / "base.sif")
            (context / "wheels").mkdir()
            (context / "wheels" / "one").write_text("read")
            (context / "wheels" / "two").hardlink_to(tiny)
            (context / "image.def").write_text(text)
            build_in_folder(context, out, {"V": "8"}, Builder.here(), out.with_name("log"), told.append)
    finally:
        os.umask(umask)
    return Built(out, told)


def test_a_definition_becomes_an_image_that_says_what_went_in(built: Built) -> None:
    assert any("Running post scriptlet" in line for line in built.told)
    assert execute(built.image, ["cat", "/made"]).text == "made\n"
    found = inspect(built.image)
    assert found.labels["version"] == "8"
    assert "Helps." in found.help
    assert stat.S_IMODE(built.image.stat().st_mode) == 0o755
    assert sorted(path.name for path in built.image.parent.iterdir()) == ["image.sif", "log"]


def test_what_the_host_sets_does_not_get_in(built: Built) -> None:
    assert "do-not-leak" not in execute(built.image, ["cat", "/seen"]).text


def test_a_umask_that_closes_files_to_others_hinders_no_build(built: Built, tiny: Path) -> None:
    assert execute(built.image, ["cat", "/wheels/one", "/made"]).text == "readmade\n"
    assert execute(built.image, ["ls", "-l", "/made"]).text[7:10] == "r--"  # Apptainer has a umask of its own
    assert stat.S_IMODE(tiny.stat().st_mode) == 0o755  # a file that is somebody's own stays as it was


def test_no_option_of_the_user_hides_a_failed_test_and_the_old_image_stays(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_NOTEST", "1")
    out = tmp_path / "image.sif"
    out.write_text("the old one")
    with pytest.raises(ImageError) as caught:
        build(tiny, HEAD + "%test\n    echo it does not work\n    exit 1\n", out)
    for said in ("ended with status", "it does not work", str(tmp_path / "log")):
        assert said in str(caught.value)
    assert "it does not work" in (tmp_path / "log").read_text()
    assert out.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.sif", "log"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupted_build_leaves_the_old_image_and_nothing_else(
    number: signal.Signals, tiny: Path, tmp_path: Path
) -> None:
    out, work = tmp_path / "out" / "image.sif", Path("/var/tmp") / f"kdgat-test-{os.getpid()}"
    out.parent.mkdir()
    out.write_text("the old one")
    work.mkdir()
    work.chmod(0o755)
    script = textwrap.dedent(f"""
        from pathlib import Path
        from kdgat.container.process import signals_as_exit
        from tests.container.builds import HEAD, build
        with signals_as_exit():
            build(Path({str(tiny)!r}), HEAD + "%post\\n    sleep 300\\n", Path({str(out)!r}), Path({str(work)!r}))
    """)
    try:
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
        log = out.with_name("log")
        deadline = time.monotonic() + 60
        while not (log.exists() and "+ sleep 300" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert out.read_text() == "the old one"
        assert list(work.iterdir()) == []
        assert sorted(path.name for path in out.parent.iterdir()) == ["image.sif", "log"]
    finally:
        shutil.rmtree(work)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(work).encode() in _read(path)]


def test_of_apptainers_variables_a_build_keeps_those_that_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*LEAKS, *(f"{prefix}_{option}" for prefix in ("APPTAINER", "SINGULARITY") for option in OPTIONS)):
        monkeypatch.setenv(name, "do-not-leak")
    monkeypatch.setenv("KDGAT_APPTAINER", "/bin/sh")  # some program: nothing is built
    kept = ("APPTAINER_CACHEDIR", "SINGULARITY_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD")
    for name in kept:
        monkeypatch.setenv(name, str(tmp_path / name))
    environment = build_environment(tmp_path, Builder(None))
    left = {name for name in environment if name.startswith(("PIP_", "PYTHONPATH", "APPTAINER", "SINGULARITY"))}
    assert left == {*kept, "APPTAINER_TMPDIR"}


def test_a_folder_that_cannot_be_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kdgat.container.build._REMOVAL_PAUSE_S", 0.0)
    files = iter(range(100))

    def fill(path: Path, **_: object) -> None:
        """Stand for a program that still writes where rmtree has removed."""
        (path / str(next(files))).touch()

    monkeypatch.setattr(shutil, "rmtree", fill)
    with pytest.raises(SystemExit, match="130"), work_folder(tmp_path, Builder(None)) as folder:
        raise SystemExit(130)
    assert f"{folder} could not be removed" in caplog.text
    monkeypatch.undo()
    shutil.rmtree(folder)


def test_an_image_that_cannot_be_put_in_place_is_told_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "built.sif").write_text("built")
    (tmp_path / "image.sif").mkdir()
    with pytest.raises(ImageError, match=r"image\.sif: Is a directory: correct that, or name another .* with --out"):
        put_in_place(tmp_path / "built.sif", tmp_path / "image.sif")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 12 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        lack("only root can mount a small filesystem, with mount")
    folder = Path("/var/tmp") / f"kdgat-test-disk-{os.getpid()}"
    folder.mkdir()
    answer = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=755", "tmpfs", folder], capture_output=True, text=True
    )
    if answer.returncode:
        folder.rmdir()
        lack(f"no small filesystem can be mounted here: {answer.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.mark.nightly
def test_a_full_disk_is_named_and_the_old_image_stays(tiny: Path, tmp_path: Path, small_disk: Path) -> None:
    out = tmp_path / "image.sif"
    out.write_text("the old one")
    text = HEAD + "%post\n    dd if=/dev/zero of=/big bs=1000000 count=50\n"
    with pytest.raises(ImageError, match="the disk is full: free space there, or name another folder with --work-fol"):
        build(tiny, text, out, small_disk)
    assert out.read_text() == "the old one"
    assert list(small_disk.iterdir()) == []


def test_a_missing_helper_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"mksquashfs, fakeroot missing.*apt-get install squashfs-tools fakeroot"):
        check_helpers({"PATH": str(tmp_path)})


def test_a_folder_that_the_builder_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ImageError, match=r"is closed to others.*--work-folder"), work_folder(closed, Builder(65534)):
        pass
    with (
        pytest.raises(ImageError, match="is no folder: name one with --work-folder"),
        work_folder(tmp_path / "nowhere", Builder(None)),
    ):
        pass


def test_a_folder_is_no_place_for_an_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"is a folder: name the file, as .*kdgat-cpu\.sif"):
        build_image(find_checkout(), VARIANTS["cpu"], Base("docker", "a", "b", "c"), tmp_path, print)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
