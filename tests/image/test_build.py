"""A build streams, explains its failure, and never leaves a partial image; real Apptainer, tiny images."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.image.apptainer import execute, inspect
from kdgat.image.base import choose_base
from kdgat.image.build import (
    Builder,
    BuildError,
    build_arguments,
    build_environment,
    build_image,
    build_in_folder,
    check_helpers,
    work_folder,
)
from kdgat.image.checkout import find_checkout
from kdgat.image.recipe import VARIANTS, define
from tests.image.builds import HEAD, build
from tests.image.built import lack


def test_a_definition_becomes_an_image_that_says_what_went_in(tiny: Path, tmp_path: Path) -> None:
    text = HEAD + "%arguments\n    V=0\n%post\n    echo made > /made\n%labels\n    version {{ V }}\n%help\n    Helps.\n"
    out = tmp_path / "image.sif"
    told = build(tiny, text, out, V="7")
    assert any("Running post scriptlet" in line for line in told)
    assert execute(out, ["cat", "/made"]).text == "made\n"
    found = inspect(out)
    assert found.labels["version"] == "7"
    assert "Helps." in found.help
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.sif", "log"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "%post\n    echo the reason >&2\n    exit 9\n", "the reason"),
        (HEAD + "%post\n    true\n%test\n    echo it does not work\n    exit 1\n", "it does not work"),
        (HEAD + "%files\n    nowhere /nowhere\n", "nowhere"),
    ],
)
def test_a_failure_says_its_last_lines_and_the_old_image_stays(
    tiny: Path, tmp_path: Path, text: str, said: str
) -> None:
    out = tmp_path / "image.sif"
    out.write_text("the old one")
    with pytest.raises(BuildError) as caught:
        build(tiny, text, out)
    assert said in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)
    assert said in (tmp_path / "log").read_text()
    assert out.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.sif", "log"]


def test_an_interrupted_build_leaves_the_old_image_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "out" / "image.sif", Path("/var/tmp") / f"kdgat-test-{os.getpid()}"
    out.parent.mkdir()
    out.write_text("the old one")
    work.mkdir()
    work.chmod(0o755)
    script = textwrap.dedent(f"""
        from pathlib import Path
        from kdgat.image.process import signals_as_exit
        from tests.image.builds import HEAD, build
        with signals_as_exit():
            build(Path({str(tiny)!r}), HEAD + "%post\\n    sleep 300\\n", Path({str(out)!r}), Path({str(work)!r}))
    """)
    try:
        for number in (2, 15):
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
            log.unlink()
    finally:
        shutil.rmtree(work)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(work).encode() in _read(path)]


def test_what_the_host_sets_does_not_get_in(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "APPTAINERENV_PASSWORD", "SECRET_TOKEN", "PYTHONPATH", "SINGULARITYENV_PASSWORD"):
        monkeypatch.setenv(name, "do-not-leak")
    options = ("NOTEST", "SECTION", "SANDBOX", "FAKEROOT", "NV", "MKSQUASHFS_ARGS", "BINDPATH", "NO_PRIVS")
    for name in (f"{prefix}_{option}" for prefix in ("APPTAINER", "SINGULARITY") for option in options):
        monkeypatch.setenv(name, "1")
    kept = ("APPTAINER_CACHEDIR", "SINGULARITY_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD")
    for name in kept:
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("APPTAINER_BINDPATH", str(tmp_path))
    out = tmp_path / "image.sif"
    build(tiny, HEAD + "%post\n    env > /seen\n", out)
    assert "do-not-leak" not in execute(out, ["cat", "/seen"]).text
    environment = build_environment(tmp_path, Builder(None))
    left = {name for name in environment if name.startswith(("PIP_", "PYTHONPATH", "APPTAINER", "SINGULARITY"))}
    assert left == {*kept, "APPTAINER_TMPDIR"}


def test_no_option_of_the_user_puts_an_untested_image_in_place(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_NOTEST", "1")
    out = tmp_path / "image.sif"
    with pytest.raises(BuildError, match="it does not work"):
        build(tiny, HEAD + "%test\n    echo it does not work\n    exit 1\n", out)
    assert not out.exists()


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_umask_that_closes_files_to_others_hinders_no_build(tiny: Path, tmp_path: Path, narrow_umask: None) -> None:
    builder, out = Builder.here(), tmp_path / "image.sif"
    with work_folder(Path("/var/tmp"), builder) as folder:
        context = folder / "context"
        shutil.copyfile(tiny, context / "base.sif")
        (context / "wheels").mkdir()
        (context / "wheels" / "one").write_text("read")
        (context / "wheels" / "two").hardlink_to(tiny)
        mode = tiny.stat().st_mode
        (context / "image.def").write_text(HEAD + "%files\n    wheels /wheels\n%post\n    echo made > /made\n")
        build_in_folder(context, out, {}, builder, tmp_path / "log", lambda line: None)
    assert execute(out, ["cat", "/wheels/one", "/made"]).text == "readmade\n"
    assert execute(out, ["ls", "-l", "/made"]).text[7:10] == "r--"  # Apptainer has a umask of its own
    assert tiny.stat().st_mode == mode  # a file that is somebody's own stays as it was


def test_a_folder_that_cannot_be_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kdgat.image.build._REMOVAL_PAUSE_S", 0.0)
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


def test_an_image_that_cannot_be_put_in_place_is_told_with_the_option(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "image.sif").mkdir()
    with pytest.raises(BuildError, match=r"image\.sif: Is a directory: correct that, or name another .* with --out"):
        build(tiny, HEAD, tmp_path / "image.sif")


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


def test_a_full_disk_is_named_and_the_old_image_stays(tiny: Path, tmp_path: Path, small_disk: Path) -> None:
    out = tmp_path / "image.sif"
    out.write_text("the old one")
    text = HEAD + "%post\n    dd if=/dev/zero of=/big bs=1000000 count=50\n"
    with pytest.raises(BuildError, match="the disk is full: free space there, or name another folder with --work-fol"):
        build(tiny, text, out, small_disk)
    assert out.read_text() == "the old one"
    assert list(small_disk.iterdir()) == []


def test_a_missing_helper_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"mksquashfs, fakeroot missing.*apt-get install squashfs-tools fakeroot"):
        check_helpers({"PATH": str(tmp_path)})


def test_a_folder_that_the_builder_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(BuildError, match=r"is closed to others.*--work-folder"), work_folder(closed, Builder(65534)):
        pass
    with (
        pytest.raises(BuildError, match="is no folder: name one with --work-folder"),
        work_folder(tmp_path / "nowhere", Builder(None)),
    ):
        pass


def test_a_folder_is_no_place_for_an_image(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"is a folder: name the file, as .*kdgat-cpu\.sif"):
        build_image(find_checkout(), VARIANTS["cpu"], choose_base(str(tiny)), tmp_path, print)


def test_every_argument_of_a_build_is_declared_in_the_definition(tiny: Path) -> None:
    for variant in VARIANTS.values():
        arguments = build_arguments(find_checkout(), variant, choose_base(str(tiny)), "unknown")
        declared = {name for stage in define(variant).stages for name in stage.arguments}
        assert set(arguments) == declared  # Apptainer refuses one that no stage uses


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
