"""The card as torch and the driver see it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from kdgat.base import MIB, UserError
from kdgat.can.models.attention_triton import is_usable
from kdgat.stage.gpus import has_kernels
from kdgat.training.device import check_accelerator

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

ASKED = "name,driver_version,memory.total,compute_mode,mig.mode.current,clocks.max.sm"


def describe(device: str, rows: Rows) -> None:
    """Add what is known of the card, the driver and this build of torch."""
    rows.add(what="torch", found=torch.__version__)
    rows.add(what="CUDA of torch", found=torch.version.cuda)
    rows.add(what="architectures", found=", ".join(torch.cuda.get_arch_list()) or "none")
    try:
        listed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"],
            capture_output=True, errors="replace", timeout=20, check=False,
        )  # fmt: skip
        rows.add(what=f"nvidia-smi: {ASKED}", found=(listed.stdout or listed.stderr).strip())
    except FileNotFoundError:
        rows.add(what="nvidia-smi", found="not on this machine")
    except (OSError, subprocess.TimeoutExpired) as error:
        rows.add(what="nvidia-smi", found=f"{type(error).__name__}: {error}")
    try:
        check_accelerator(device)
        rows.add(what="check_accelerator", found="usable")
    except (RuntimeError, ValueError) as error:
        raise UserError(f"no GPU to check ({error}); --device cpu tries the check itself") from error
    if device != "cuda":
        return
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    rows.add(what="card", found=properties.name)
    rows.add(what="capability", found=f"{properties.major}.{properties.minor}")
    rows.add(what="kernels for it", found=has_kernels(capability, torch.cuda.get_arch_list()))
    rows.add(what="multiprocessors", found=properties.multi_processor_count)
    rows.add(what="memory, MiB", found=properties.total_memory // MIB)
    rows.add(what="free, MiB", found=torch.cuda.mem_get_info()[0] // MIB)
    rows.add(what="bfloat16", found=torch.cuda.is_bf16_supported(including_emulation=False))
    rows.add(what="kernels for attention", found=is_usable(torch.device(device)))
    rows.add(what="launch, us", found=launch_us())
    rows.add(what="copy on the card, TB/s", found=copy_rate())


def launch_us(count: int = 2000) -> float:
    """Return the microseconds between the launches of small kernels, from one thread of Python."""
    one = torch.zeros(8, device="cuda")
    return 1e3 * elapsed_ms(lambda: [one.add_(1.0) for _ in range(count)]) / count


def copy_rate() -> float:
    """Return how many terabytes a second a copy on the card reads and writes."""
    free, _ = torch.cuda.mem_get_info()  # a part of a card, or one that others use, may have little
    source = torch.randn(min(2**28, free // 64), device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / elapsed_ms(lambda: target.copy_(source)) / 1e9


def elapsed_ms(work: Callable[[], object], warm_up: int = 2) -> float:
    """Return the milliseconds that the card takes for what a function launches."""
    for _ in range(warm_up):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))
