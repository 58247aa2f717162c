"""Errors that libraries really raise where a disk, a limit or a GPU fails, and errors that only look like them."""

import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import polars
import pytest
import torch
from safetensors.torch import save_file

from kdgat.stage import EnvironmentFaultError, FailureKind, RunDirectoryError, StageBusyError
from kdgat.stage.errors import OwnerLostError
from kdgat.stage.faults import is_environment_fault, patiently
from kdgat.stage.runner import failure_kind


def caught(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    pytest.fail("it raised nothing")


@pytest.fixture
def short_files() -> Iterator[None]:
    """Let no file grow above a page: every library is stopped in the middle of what it writes, as by a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


VALUES = np.zeros(10_000)


@pytest.mark.usefixtures("short_files")
@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(VALUES.tobytes()),
        lambda path: np.save(path, VALUES),
        lambda path: torch.save(torch.from_numpy(VALUES), path),
        lambda path: save_file({"values": torch.from_numpy(VALUES)}, path),
        lambda path: h5py.File(path, "w", driver="core").create_dataset("values", data=VALUES).file.close(),
    ],
    ids=["python", "numpy", "torch", "safetensors", "h5py"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_cannot_be_written_to_its_end(tmp_path: Path, write: Callable[[Path], object]) -> None:
    assert is_environment_fault(caught(lambda: write(tmp_path / "file.npy")))


@pytest.mark.parametrize("write", [polars.DataFrame.write_parquet, polars.DataFrame.write_csv])
def test_a_full_disk(write: Callable[[polars.DataFrame, str], object]) -> None:
    assert is_environment_fault(caught(lambda: write(polars.DataFrame({"a": range(10_000)}), "/dev/full")))
    assert is_environment_fault(caught(lambda: Path("/dev/full").write_bytes(b"x")))


def wrapped(error: Exception) -> Exception:
    try:
        raise RunDirectoryError("DIR cannot be written to") from error
    except RunDirectoryError as outer:
        return outer


@pytest.mark.parametrize(
    "number",
    [
        errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.ENOTCONN, errno.EACCES,
        errno.EHOSTDOWN, errno.EFBIG, errno.EBUSY, errno.ENFILE, errno.EAGAIN, errno.EUCLEAN, errno.EKEYEXPIRED,
    ],
    ids=errno.errorcode.get,
)  # fmt: skip
def test_an_errno_of_the_machine(number: int) -> None:
    assert failure_kind(OSError(number, "what it says", "file")) is FailureKind.ENVIRONMENT
    assert is_environment_fault(wrapped(OSError(number, "what it says", "file")))


@pytest.mark.parametrize(
    "number", [errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EBADF, errno.EPIPE]
)
def test_an_errno_of_whoever_asked(number: int) -> None:
    assert failure_kind(OSError(number, "what it says", "file")) is FailureKind.ERROR


def test_no_memory_for_a_process_is_no_memory() -> None:
    assert failure_kind(OSError(errno.ENOMEM, "Cannot allocate memory")) is FailureKind.HOST_OOM


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: out of memory",  # of the context, on a GPU that others fill; the allocator says it otherwise
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system.",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "CUDA driver initialization failed, you might not have a CUDA gpu.",
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    ],
)
def test_a_gpu_that_is_broken_taken_or_not_there(text: str) -> None:
    assert failure_kind(RuntimeError(text)) is FailureKind.ENVIRONMENT
    assert failure_kind(torch.AcceleratorError(text)) is FailureKind.ENVIRONMENT


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: invalid configuration argument",
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`",
        "CUDA error: operation not permitted when stream is capturing",
        "CUDA error: operation failed due to a previous error during capture",
        "cuDNN error: CUDNN_STATUS_BAD_PARAM",
        "mat1 and mat2 shapes cannot be multiplied",
    ],
)
def test_what_every_gpu_would_say_of_this_code(text: str) -> None:
    assert failure_kind(RuntimeError(text)) is FailureKind.ERROR


def test_a_gpu_of_which_the_stage_itself_took_too_much() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"
    assert failure_kind(torch.OutOfMemoryError(text)) is FailureKind.CUDA_OOM


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ImportError("libcuda.so.1: cannot open shared object file: No such file"), FailureKind.ENVIRONMENT),
        (OSError("libcudart.so.13: cannot open shared object file: No such file"), FailureKind.ENVIRONMENT),  # ctypes
        (ImportError("/lib64/libc.so.6: version `GLIBC_2.34' not found"), FailureKind.ENVIRONMENT),
        (ModuleNotFoundError("No module named 'torch'"), FailureKind.ERROR),  # no node would have it
        (ImportError("cannot import name 'run' from 'demo.stages'"), FailureKind.ERROR),
    ],
)
def test_imports_fail_on_this_node_or_on_every_node(error: Exception, kind: FailureKind) -> None:
    assert failure_kind(error) is kind


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ConnectionResetError(), ConnectionRefusedError()])
def test_whoever_does_not_answer_is_not_the_stage(error: OSError) -> None:
    assert error.errno is None  # as asyncio raises them
    assert is_environment_fault(error)


def test_a_reader_that_went_away_is_no_fault_of_the_machine() -> None:
    assert not is_environment_fault(BrokenPipeError())


def test_a_directory_that_others_have_is_no_fault_of_the_stage() -> None:
    for error in (StageBusyError("in use"), OwnerLostError("taken over"), EnvironmentFaultError("no GPU")):
        assert is_environment_fault(error)


def test_a_sentence_that_quotes_an_errno_is_none() -> None:
    assert not is_environment_fault(RunDirectoryError("os error 28 stands in this key"))
    assert not is_environment_fault(KeyError("os error 2"))


def test_what_the_filesystem_refuses_is_tried_again_after_each_pause() -> None:
    refusals = iter([OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")])
    waited: list[tuple[str, float]] = []

    def read() -> str:
        for error in refusals:
            raise error
        return "read"

    assert patiently(read, (0.1, 0.2), lambda error, pause_s: waited.append((str(error), pause_s))) == "read"
    assert waited == [("[Errno 116] Stale file handle", 0.1), ("[Errno 5] Input/output error", 0.2)]


def test_a_refusal_that_lasts_is_raised() -> None:
    def read() -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match="Stale"):
        patiently(read, (0.0, 0.0))


def test_a_mistake_is_raised_at_once() -> None:
    tries = []

    def read() -> str:
        tries.append(1)
        raise FileNotFoundError(errno.ENOENT, "no such part")

    with pytest.raises(FileNotFoundError):
        patiently(read)
    assert len(tries) == 1
