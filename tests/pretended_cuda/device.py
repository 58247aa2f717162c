"""A CUDA device that is made of the processor's memory: every tensor there says `cuda:0`, every operator runs here.

Operators that mix devices raise what CUDA raises. What is launched, what waits for the device and what is sent to it is
counted, by the line of kdgat that did it. There are no streams, no errors of CUDA and no inference tensors.

`library.load()` must have been called before torch was imported.
"""

import collections
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar
from unittest import mock

import torch
import torch._dynamo  # before it is told that there is CUDA
import torch.optim
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, return_and_correct_aliasing

from kdgat.can.models import attention_triton
from tests.pretended_cuda.kernels import Kernels
from tests.pretended_cuda.memory import Memory

CUDA = torch.device("cuda", 0)
# Views, and memory that is not written to.
NO_KERNEL = frozenset(
    [
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "lift_fresh",
        "new_empty",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)
# Operators that ask the device for a size, or for a number, and how often.
WAITING = {"nonzero": 1, "masked_select": 1, "_unique2": 1, "unique_dim": 1, "equal": 1, "bincount": 2}


@dataclass
class Seen:
    """What a pretended device was asked for since it was last cleared."""

    launches: int = 0
    operators: collections.Counter[str] = field(default_factory=collections.Counter)
    waits: collections.Counter[str] = field(default_factory=collections.Counter)  # by the line of kdgat
    uploads: collections.Counter[str] = field(default_factory=collections.Counter)  # by the line of kdgat
    bytes_sent: int = 0
    calls: list[tuple[str, tuple[tuple[int, ...], ...]]] | None = None  # operators and shapes, where a list is put here

    recorded: list[Callable[[], None]] | None = None  # what a CUDA graph is being made of

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def launch(self, name: str, tensors: Sequence[Tensor] = ()) -> None:
        """Note that a kernel was launched."""
        self.launches += 1
        self.operators[name] += 1
        if self.calls is not None:
            self.calls.append((name, tuple(tuple(tensor.shape) for tensor in tensors)))

    def launch_kernel(self, name: str, again: Callable[[], None]) -> None:
        """Note that a kernel of ours was launched, and how to do it again."""
        self.launch(name)
        if self.recorded is not None:
            self.recorded.append(again)

    def wait(self) -> None:
        """Note that the host waited for the device."""
        self._refuse_while_recording("a wait")
        self.waits[_line()] += 1

    def upload(self, tensor: Tensor) -> None:
        """Note that a tensor was sent."""
        self._refuse_while_recording("an upload")
        self.uploads[_line()] += 1
        self.bytes_sent += tensor.nbytes

    def _refuse_while_recording(self, what: str) -> None:
        if self.recorded is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what} at {_line()}")


class Graph:
    """What stands for torch.cuda.CUDAGraph: operators in their order, which read and write the same memory again."""

    def __init__(self) -> None:
        self.recorded: list[Callable[[], None]] = []

    def pool(self) -> None:
        """Name no pool of memory."""

    def replay(self) -> None:
        """Execute what was recorded, in one launch."""
        OnDevice.seen.launch("graph")
        with torch.no_grad():
            for operator in self.recorded:
                operator()


@contextlib.contextmanager
def recording(graph: Graph, pool: Any = None, stream: Any = None) -> Iterator[None]:
    """Stand for torch.cuda.graph."""
    seen = OnDevice.seen
    assert seen.recorded is None
    seen.recorded = graph.recorded
    try:
        yield
    finally:
        seen.recorded = None


def _again(func: Any, args: Any, kwargs: Any, made: Any) -> Callable[[], None]:
    """Return what executes an operator again, into the memory that it has written to before."""
    written = list(_tensors([made]))

    def execute() -> None:
        for old, new in zip(written, _tensors([func(*args, **kwargs)]), strict=True):
            if old is not new:
                old.copy_(new)

    return execute


def _line() -> str:
    """Return the innermost line of kdgat that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        _, found, name = frame.f_code.co_filename.rpartition("/kdgat/")
        if found:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside of kdgat"


class OnDevice(torch.Tensor):
    """A tensor that says `cuda:0`; what it holds is in `inner`."""

    seen: ClassVar[Seen] = Seen()
    memory: ClassVar[Memory] = Memory()
    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=CUDA,
            requires_grad=False,
        )
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner
        self.memory.hold(self, inner)

    def tolist(self) -> Any:
        """Wait, then return what is there."""
        self.seen.wait()
        return self.detach().inner.tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Wait, then pickle what is there: files are read with map_location=cpu."""
        self.seen.wait()
        return self.detach().inner.__reduce_ex__(protocol)

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as torch does."""
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as torch does."""
        return self.numpy()

    def __repr__(self, **kwargs: Any) -> str:
        """Show what is there."""
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operator."""
        return _execute(func, args, kwargs or {}, cls.seen)


class _Mode(TorchDispatchMode):
    """Catches what is given no tensor of the device: factories, and uploads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _execute(func, args, kwargs or {}, OnDevice.seen)


def _inner(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.inner
    return type(value)(map(_inner, value)) if type(value) in (list, tuple) else value


def _outer(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if isinstance(value, OnDevice) else OnDevice(value)
    return type(value)(map(_outer, value)) if type(value) in (list, tuple) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


@cache
def _schema(func: Any) -> tuple[str, bool, bool]:
    """Return the name of an operator, whether what it returns may share memory with what it is given, and be it."""
    schema = func._schema
    is_aliasing = schema.is_mutable or any(one.alias_info for one in schema.arguments)
    return schema.name.split("::")[1], is_aliasing, schema.is_mutable


def _waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return how often the host waits for the device in an operator."""
    if name == "repeat_interleave":
        return int(kwargs.get("output_size") is None)
    if name in ("index", "index_put_"):  # by a mask: its places are looked for, one mask after the other
        return sum(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return WAITING.get(name, 0)


def _execute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], seen: Seen) -> Any:
    """Execute an operator of torch on whatever device its arguments are."""
    name, is_aliasing, is_writing = _schema(func)
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    is_here = any(isinstance(tensor, OnDevice) for tensor in tensors)
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type

    def run(**changed: Any) -> Any:
        inner, options = [*map(_inner, args)], {key: _inner(value) for key, value in kwargs.items()} | changed
        made = func(*inner, **options)
        # Views of memory need not be made again.
        if seen.recorded is not None and (is_writing or not is_aliasing):
            seen.recorded.append(_again(func, inner, options, made))
        return made

    if name == "copy_":
        target, source = args[0], args[1]
        if isinstance(target, OnDevice) and not isinstance(source, OnDevice):
            seen.upload(source)
        elif isinstance(source, OnDevice) and not isinstance(target, OnDevice):
            seen.wait()
        elif is_here:
            seen.launch(name, tensors)
        run()
        return target
    if name == "_to_copy" and wanted is not None:
        made = run(device=torch.device("cpu"), non_blocking=False)
        if is_here and wanted == "cuda":
            seen.launch(name, tensors)
        elif is_here:
            seen.wait()
        elif wanted == "cuda":
            seen.upload(made)
        return OnDevice(made) if wanted == "cuda" else made
    if not is_here:
        if wanted == "cuda":
            if name not in NO_KERNEL:
                seen.launch(name, tensors)
            return _outer(run(device=torch.device("cpu")))
        return func(*args, **kwargs)
    if name == "_local_scalar_dense":
        seen.wait()
        return run()
    if any(not isinstance(tensor, OnDevice) and tensor.dim() for tensor in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(in {func})"
        )
    for _ in range(_waits(name, args, kwargs)):
        seen.wait()
    if name not in NO_KERNEL:
        seen.launch(name, tensors)
    if wanted is not None:
        made = run(device=torch.device("cpu"))
        return _outer(made) if wanted == "cuda" else made
    made = _outer(run())
    return return_and_correct_aliasing(func, tuple(args), dict(kwargs), made) if is_aliasing else made


@contextlib.contextmanager
def on_the_processor() -> Iterator[None]:
    """Execute what asks for no GPU as ever, and as fast."""
    with _disable_current_modes():
        yield


@contextlib.contextmanager
def pretended_cuda(
    name: str = "NVIDIA Pretended",
    capability: tuple[int, int] = (9, 0),
    architectures: Sequence[str] = ("sm_75", "sm_80", "sm_90"),
) -> Iterator[Seen]:
    """Have torch believe that there is one GPU of this capability; yield what it is asked for."""
    seen, memory = OnDevice.seen, Memory()
    seen.clear()
    OnDevice.memory = memory

    def synchronize(device: Any = None) -> None:
        seen.wait()

    nothing, zero = (lambda *_, **__: None), (lambda *_, **__: 0)
    of_cuda: dict[str, Any] = {
        "Event": lambda: mock.Mock(),  # nothing takes time here
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": zero,
        "_exchange_device": zero,
        "_maybe_exchange_device": zero,
        "get_device_name": lambda device=None: name,
        "get_device_capability": lambda device=None: capability,
        "get_arch_list": lambda: list(architectures),
        "is_bf16_supported": lambda *_, **__: capability >= (8, 0),
        "synchronize": synchronize,
        # What the device draws is drawn here, from the one stream that there is.
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "CUDAGraph": Graph,
        "graph": recording,
        "Stream": lambda device=None: mock.Mock(),
        "current_stream": lambda device=None: mock.Mock(),
        "stream": lambda stream: contextlib.nullcontext(),
        "mem_get_info": lambda device=None: (memory.free, memory.total),
        "max_memory_allocated": lambda device=None: memory.peak,
        "memory_reserved": lambda device=None: memory.reserved,
        "memory_allocated": lambda device=None: memory.allocated,
        "memory_stats": lambda device=None: {},
        "empty_cache": memory.empty_cache,
        "reset_peak_memory_stats": memory.reset_peak,
    }
    for ignored in ("_lazy_init", "init", "set_device", "manual_seed", "manual_seed_all"):
        of_cuda[ignored] = nothing
    with contextlib.ExitStack() as stack:
        for key, value in of_cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, key, value))
        for key, value in {"_record_memory_history": memory.record, "_snapshot": memory.snapshot}.items():
            stack.enter_context(mock.patch.object(torch.cuda.memory, key, value))
        attach = "_cuda_attach_out_of_memory_observer"  # which a build without CUDA lacks
        stack.enter_context(mock.patch.object(torch._C, attach, memory.observers.append, create=True))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(mock.patch.object(torch, "inference_mode", torch.no_grad))
        # torch.tensor(..., device="cuda") makes it here, then moves it.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        # Module.to: between the two memories a parameter is made anew, within one it stays the object of an optimizer.
        stack.enter_context(
            mock.patch.object(
                torch,
                "_has_compatible_shallow_copy_type",
                lambda first, second: isinstance(first, OnDevice) == isinstance(second, OnDevice),
            )
        )
        stack.enter_context(mock.patch.object(attention_triton, "_kernels", return_value=Kernels(seen.launch_kernel)))
        attention_triton._runs_on.cache_clear()
        stack.callback(attention_triton._runs_on.cache_clear)
        stack.enter_context(_Mode())
        yield seen
