"""The real CPU image, as a site runs it, with the checkout's kdgat in place of the one that it was built with."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kdgat.base import sha256_of_file
from kdgat.container import probe
from kdgat.container.agreement import check_agreement, describe_here
from kdgat.container.apptainer import command_environment, exec_command, execute, inspect, run_test
from kdgat.container.checkout import find_checkout
from kdgat.container.contents import read_pins
from kdgat.container.variants import VARIANTS
from kdgat.container.wheels import read_pip_sources
from tests.container.built import checkout_binds, cpu_image, source_image
from tests.support.optional import lack


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """The cached image; every container started meanwhile has the checkout's code bound over the image's own."""
    found = cpu_image()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APPTAINER_BIND", ",".join(checkout_binds()))
        yield found


def python(image: Path, code: str, *, binds: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Run a line of Python in the image and return what it prints."""
    answer = execute(image, ["python", "-c", code], binds=binds, options=options)
    assert answer.status == 0, answer.text
    return answer.text.strip()


def test_the_images_own_test_passes(image: Path) -> None:
    assert run_test(image) == 0


def test_it_holds_what_the_lock_says_and_runs_the_kdgat_of_the_checkout(image: Path) -> None:
    lock = find_checkout().lock_path(VARIANTS["cpu"])
    inside = execute(image, ["cat", "/opt/kdgat/share/kdgat/requirements.lock"]).text
    assert read_pins(inside) == read_pins(lock.read_text())
    where = python(image, "import kdgat, flows, sys; print(sys.executable, kdgat.__file__, flows.__file__)").split()
    assert where[0] == "/opt/kdgat/bin/python"
    assert all(path.startswith("/opt/kdgat/lib/python3.11/site-packages/") for path in where[1:])
    probed = json.loads(python(image, Path(probe.__file__).read_text()))
    assert probed["source"] == probe.describe_environment()["source"]
    # Site files and presets travel with it.
    assert "local" in python(image, "from kdgat.cluster.site import load_site; print(load_site('local').name)")


def test_labels_say_what_it_was_made_from(image: Path) -> None:
    labels = inspect(image).labels
    assert labels["kdgat.variant"] == "cpu"
    assert labels["kdgat.lock.sha256"] == sha256_of_file(find_checkout().lock_path(VARIANTS["cpu"]))
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert labels["org.opencontainers.image.revision"]


@pytest.mark.nightly
def test_an_image_built_from_this_source_passes_its_test_and_fits_this_kdgat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPTAINER_BIND", raising=False)
    built = source_image()
    assert run_test(built) == 0
    notes = check_agreement(built)
    assert notes.contents["python"]["source"] == describe_here()["source"]
    assert inspect(built).labels["org.opencontainers.image.version"] == find_checkout().version


def test_nothing_of_the_user_or_the_working_folder_is_imported(image: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / ".local" / "lib" / "python3.11" / "site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "torch.py").write_text("raise SystemExit('the wrong torch')")
    environment = {**command_environment(), "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "x", "PYTHONHOME": "/x"}
    words = exec_command(image, ["python", "-c", "import torch; print(torch.__version__)"], binds=[str(tmp_path)])
    words[2:2] = ["--home", str(tmp_path), "--pwd", str(tmp_path)]
    answer = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (answer.stdout, answer.returncode) == ("2.13.0+cpu\n", 0), answer.stderr


def test_caches_go_to_the_nodes_tmp_unless_a_job_says_otherwise(image: Path, tmp_path: Path) -> None:
    words = exec_command(image, ["python", "-c", "import os; print(os.environ['NUMBA_CACHE_DIR'])"])
    for variables, expected in (
        ({"NUMBA_CACHE_DIR": str(Path.home()), "TMPDIR": str(tmp_path)}, f"/tmp/kdgat-caches-{os.getuid()}/numba"),
        ({"APPTAINERENV_NUMBA_CACHE_DIR": str(tmp_path)}, str(tmp_path)),
    ):
        environment = {**command_environment(), **variables}
        answer = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert answer.stdout == f"{expected}\n", answer.stderr


def test_compiled_functions_are_kept_where_nothing_else_can_be_written(image: Path, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "import numba\n@numba.njit(cache=True)\ndef double(x):\n    return 2 * x\nprint(double(21))\n"
    )
    (tmp_path / "tmp").mkdir()
    words = exec_command(image, ["python", "/mnt/code.py"], binds=[f"{tmp_path}:/mnt:ro", f"{tmp_path / 'tmp'}:/tmp"])
    words[2:2] = ["--no-mount", "home,cwd,tmp"]
    answer = subprocess.run(words, capture_output=True, text=True, env=command_environment())
    assert answer.stdout == "42\n", answer.stderr
    assert list(tmp_path.glob("tmp/kdgat-caches-*/numba/**/*.nbi"))


def test_anybody_can_read_it(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPTAINER_BIND")  # the checkout may be closed to others
    unreadable = execute(image, ["find", "/opt", "!", "-perm", "-004", "!", "-type", "l"])
    assert (unreadable.text, unreadable.status) == ("", 0)


@pytest.mark.nightly  # unpacks the whole image where others may not mount one
def test_anybody_can_run_it(image: Path) -> None:
    if os.geteuid() != 0:
        lack("only root can become somebody else")
    # Where the cache of test images lies, others have no business.
    copy = Path("/var/tmp") / f"kdgat-test-{os.getpid()}.sif"
    try:
        try:
            os.link(image, copy)
        except OSError:
            copy.write_bytes(image.read_bytes())
            copy.chmod(0o755)
        environment = {**command_environment(), "HOME": "/tmp", "TMPDIR": "/tmp"}
        for name in ("APPTAINER_NO_PRIVS", "APPTAINER_BIND"):  # the checkout may be closed to others
            environment.pop(name, None)
        words = exec_command(copy, ["python", "-c", "import os, kdgat.can.stages; print(os.getuid())"])
        words[2:2] = [] if Path("/dev/fuse").stat().st_mode & 0o006 == 0o006 else ["--unsquash"]
        answer = subprocess.run(
            words, capture_output=True, text=True, env=environment, user=65534, group=65534, extra_groups=(), cwd="/"
        )
        assert (answer.stdout, answer.returncode) == ("65534\n", 0), answer.stderr
    finally:
        copy.unlink(missing_ok=True)


def test_no_secret_and_no_place_of_this_machine_is_inside(image: Path) -> None:
    settings = read_pip_sources().settings
    places = [word for key in ("index-url", "extra-index-url", "find-links") for word in settings.get(key, "").split()]
    places.append(str(find_checkout().root))
    found = inspect(image)
    said = "\n".join([found.definition, found.help, *found.labels.values()])
    assert not [place for place in places if place in said]
    # Where it was installed from would be noted beside a package.
    noted = execute(image, ["find", "/opt/kdgat", "-name", "direct_url.json", "-o", "-name", "pip.conf"]).text
    assert noted.strip() == ""
    listed = execute(image, ["find", "/opt/build", "/opt/installer", "/etc/pip.conf"]).text
    assert "No such file" in listed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_python_inside(image: Path, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.{number.name}, lambda *seen: sys.exit(75))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        exec_command(image, ["python", "-c", code]), env=command_environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):  # on a busy machine one was lost that came while Apptainer was still about to watch for them
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
            break
    assert process.returncode == 75


def test_a_stage_process_says_what_it_wants(image: Path, tmp_path: Path) -> None:
    answer = execute(image, ["python", "-m", "kdgat.stage", str(tmp_path)], binds=[str(tmp_path)])
    assert answer.status != 0
    assert "spec.json" in answer.text
    assert "Traceback" not in answer.text
