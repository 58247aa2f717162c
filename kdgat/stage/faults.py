"""Faults of what is around a stage, told from its own by errno and text: of node, filesystem and GPU.

Libraries are recognised by name and words, because this layer imports none of them.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from kdgat.stage.errors import EnvironmentFaultError, OwnerLostError, RunDirectoryMissingError, StageBusyError

# An OSError that says that somebody asked for something wrong. All others are the machine's: ESTALE, EIO, EDQUOT, ...
# PermissionError too: whoever planned the stage could read its inputs and write here, so this node is different.
_MISTAKES: Final = frozenset(
    {
        errno.E2BIG, errno.EBADF, errno.ECHILD, errno.EDOM, errno.EEXIST, errno.EFAULT, errno.EINVAL, errno.EISDIR,
        errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOEXEC, errno.ENOSYS, errno.ENOTDIR, errno.ENOTEMPTY,
        errno.ENOTTY, errno.EOVERFLOW, errno.EPIPE, errno.ERANGE, errno.ESPIPE, errno.ESRCH, errno.EXDEV,
    }
)  # fmt: skip
_FIXES: Final = {
    errno.ENOSPC: ": free some space, and the stage goes on",
    errno.EDQUOT: ": free some of your quota, and the stage goes on",
}
_BY_CLASS: Final = (
    EnvironmentFaultError, StageBusyError, OwnerLostError, RunDirectoryMissingError, TimeoutError, ConnectionError
)  # fmt: skip
# How HDF5 and Rust (safetensors, polars) name an errno in a text.
_ERRNO: Final = re.compile(r"errno = (\d+)|os error (\d+)|\[Errno (\d+)\]")
# A file that could not be written to its end: numpy, torch.save.
_CUT_SHORT: Final = re.compile(r"\d+ requested and \d+ written|inline_container\S+ \. unexpected pos|file write failed")
_GPU: Final = re.compile(
    r"CUDA (driver )?error|CUDA driver|CUDA initialization|CUDA unknown error|No CUDA GPUs|no NVIDIA driver|"
    r"cuda runtime error|cudaGetDevice|torch\.cuda\.is_available\(\) is False|cuDNN error|"
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|NVML)_[A-Z_]+"
)
# On another GPU of the kind the code would do the same.
_GPU_MISTAKES: Final = re.compile(
    r"assert|captur|invalid (argument|value|configuration|device function|resource handle)|no kernel image|"
    r"INVALID_VALUE|BAD_PARAM|NOT_SUPPORTED|ARCH_MISMATCH"
)
# The dynamic linker, for what another node may have: a driver's library, a newer C library, a file that can be read.
_LINKER: Final = re.compile(r"cannot open shared object file|cannot read file data|version `GLIBC")
PAUSES_S: Final = (0.1, 1.0, 5.0)  # before what surroundings refused is tried again
Answer = TypeVar("Answer")


def is_environment_fault(error: BaseException) -> bool:
    """Tell whether an error is a fault of what is around the stage, which another node or a later try may not have."""
    return any(_is_fault(one) for one in with_causes(error))


def patiently(
    work: Callable[[], Answer],
    pauses_s: Sequence[float] = PAUSES_S,
    wait: Callable[[Exception, float], object] = lambda _, pause_s: time.sleep(pause_s),
) -> Answer:
    """Do what can be done again, after each of some pauses where surroundings refuse; `wait` is told why."""
    for pause_s in pauses_s:
        try:
            return work()
        except Exception as error:
            if not is_environment_fault(error):
                raise
            wait(error, pause_s)
    return work()


def describe_fault(error: BaseException) -> str | None:
    """Say in one line what the system refused, of which file, and the fix where one is known; None of another error.

    >>> describe_fault(OSError(errno.ENOSPC, "No space left on device", "/scratch/a.h5"))
    'No space left on device (/scratch/a.h5): free some space, and the stage goes on'
    """
    for one in with_causes(error):
        number = one.errno if isinstance(one, OSError) else None
        if number is None and not isinstance(one, ValueError):
            number = next((int(text) for found in _ERRNO.findall(str(one)) for text in found if text), None)
        if number is not None and number not in _MISTAKES:
            place = getattr(one, "filename", None)
            named = f" ({os.fsdecode(place)})" if isinstance(place, str | bytes) else ""
            return f"{os.strerror(number)}{named}{_FIXES.get(number, '')}"
    return None


def _is_fault(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, _BY_CLASS) and not isinstance(error, BrokenPipeError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in _MISTAKES
    if isinstance(error, ImportError | OSError) and _LINKER.search(text) is not None:  # ctypes raises an OSError
        return True
    if isinstance(error, ValueError):  # a sentence of ours, which may quote anything
        return False
    numbers = [int(number) for found in _ERRNO.findall(text) for number in found if number]
    if numbers:
        return any(number not in _MISTAKES for number in numbers)
    return (
        _CUT_SHORT.search(text) is not None
        or (isinstance(error, OSError) and text.startswith(_strerrors()))
        or (isinstance(error, RuntimeError) and _is_of_gpu(error, text))
    )


def _is_of_gpu(error: RuntimeError, text: str) -> bool:
    is_named = type(error).__name__ == "AcceleratorError" or _GPU.search(text) is not None
    return is_named and _GPU_MISTAKES.search(text) is None


def _strerrors() -> tuple[str, ...]:
    return tuple(os.strerror(number) for number in errno.errorcode if number not in _MISTAKES)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__
