"""GPUs as the caller of a stage sees them, and how busy one is: without torch, which takes long to import."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from kdgat.stage.provenance import GPUS_VARIABLE, package_version
from kdgat.stage.work import Work

logger = logging.getLogger(__name__)

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
DRIVER_FOLDER: Final = Path("/proc/driver/nvidia/gpus")
ASK_TIMEOUT_S: Final = 20
SAMPLE_INTERVAL_S: Final = 5
END_S: Final = 5.0
# What a stage's error says where every card of the same kind would say it.
NO_KERNELS: Final = "has no kernels for"
OLD_DRIVER: Final = "driver on your system is too old"  # torch's own words
OF_THE_CARD: Final = (NO_KERNELS, OLD_DRIVER)
FOR_CUDA_12: Final = "use the image for CUDA 12 (kdgat image build gpu)"  # what most of such cards need
OF_AMPERE: Final = ("bf16-mixed", "tf32")  # precisions that older cards have no units for: emulated, or not at all
AMPERE: Final = (8, 0)  # its capability
# Names without the maker's words, with - for any separator; a memory size and the like may follow after one.
_CAPABILITIES: Final = {
    r"k80": (3, 7),
    r"p100": (6, 0),
    r"p4|p40|(gtx-?)?10[678]0(-?ti)?": (6, 1),
    r"v100s?|titan-?v|gv100": (7, 0),
    r"t4|titan-?rtx|(rtx-?)?20[678]0(-?ti)?|rtx-?(5000|6000|8000)": (7, 5),
    r"a100|a30|a800": (8, 0),
    r"a2|a10g?|a16|a40|(rtx-?)?a[456]000|(rtx-?)?30[6789]0(-?ti)?": (8, 6),
    r"l4|l20|l40s?|rtx-?[456]000-?ada|(rtx-?)?40[6789]0(-?ti)?": (8, 9),
    r"h20|h100|h200|h800|gh200": (9, 0),
    r"b100|b200|gb200": (10, 0),
    r"b300|gb300": (10, 3),
    r"(rtx-?)?50[6789]0(-?ti)?|rtx-?pro-?[456]000": (12, 0),
}
_MAKER: Final = r"(?:(?:nvidia|tesla|quadro|geforce)-?)*"
# Least and most memory of those that are sold by a name, in GB.
_MEMORY_GB: Final = {
    r"k80": (12, 24),
    r"p100": (12, 16),
    r"v100s?": (16, 32),
    r"t4|a2|a16": (16, 16),
    r"a10g?|a30|l4": (24, 24),
    r"a40|l40s?": (45, 48),
    r"a100": (40, 80),
    r"h100": (64, 96),
    r"h200": (141, 141),
    r"b200": (180, 192),
}
_ARCHITECTURE: Final = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


class Card(NamedTuple):
    """A GPU as its driver describes it."""

    name: str
    capability: tuple[int, int]
    driver: str


def num_given_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs the job of this process asked for; 0 where nobody said."""
    text = environment.get(GPUS_VARIABLE, "")
    return int(text) if text.isdigit() else 0


def visible_gpus(environment: Mapping[str, str] = os.environ, driver_folder: Path = DRIVER_FOLDER) -> tuple[str, ...]:
    """Name the GPUs that stages on this machine can take, as `CUDA_VISIBLE_DEVICES` wants it.

    They are those of that variable; else those that `nvidia-smi` lists, or where that is not installed, those that the
    driver knows. None where torch is built without CUDA.
    """
    if (package_version("torch") or "").endswith("+cpu"):
        return ()
    stated = environment.get(VISIBLE_VARIABLE)
    if stated is not None:
        names = [name.strip() for name in stated.split(",")]
        ends = [place for place, name in enumerate(names) if name in ("", "-1")]  # CUDA ignores what follows
        return tuple(names[: ends[0]] if ends else names)
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, errors="replace", timeout=ASK_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return tuple(map(str, range(len(list(driver_folder.glob("*"))))))
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return gpus_of(listed.stdout)


def gpus_of(listing: str) -> tuple[str, ...]:
    """Read what `nvidia-smi -L` prints; a GPU that is cut into instances (MIG) stands for these.

    >>> gpus_of("GPU 0: NVIDIA A100 (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\\nGPU 1: A30 (UUID: GPU-3)")
    ('MIG-2', 'GPU-3')
    """
    found: list[str] = []
    for name in re.findall(r"\(UUID: ((?:GPU|MIG)-[^)\s]+)\)", listing):
        # The instances of a GPU are listed below it.
        if name.startswith("MIG-") and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(name)
    return tuple(found)


def list_cards() -> tuple[Card, ...]:
    """Ask the driver's tool for the GPUs that this process sees; none where it is missing or does not answer."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, errors="replace", timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return cards_of(listed.stdout)


def cards_of(listing: str) -> tuple[Card, ...]:
    """Read the lines of `list_cards`; those that say something else (no device, an error) are no cards.

    >>> cards_of("Tesla V100-SXM2-32GB, 7.0, 535.183.01")
    (Card(name='Tesla V100-SXM2-32GB', capability=(7, 0), driver='535.183.01'),)
    """
    found = re.findall(r"^(.+), (\d+)\.(\d+), (\d[\d.]*)\s*$", listing, re.MULTILINE)
    return tuple(Card(name, (int(major), int(minor)), driver) for name, major, minor, driver in found)


def capability_of(gpu_type: str) -> tuple[int, int] | None:
    """Return the compute capability of the cards of a name; None where the name says nothing.

    >>> capability_of("v100-32g"), capability_of("NVIDIA_A100_80GB"), capability_of("1g.10gb")
    ((7, 0), (8, 0), None)
    """
    name = re.sub(r"[_. ]", "-", gpu_type.lower())
    found = (one for words, one in _CAPABILITIES.items() if re.match(rf"{_MAKER}(?:{words})(?:-(?!ada)|$)", name))
    return next(found, None)


def memory_of(gpu_type: str) -> tuple[int, int] | None:
    """Return the least and the most memory of the cards of a name, GB; None where the name says nothing.

    >>> memory_of("v100-32g"), memory_of("NVIDIA_A100"), memory_of("a100_1g.10gb"), memory_of("gold")
    ((32, 32), (40, 80), (10, 10), None)
    """
    name = re.sub(r"[_. ]", "-", gpu_type.lower())
    if stated := re.search(r"(?:^|-)(\d+)-?gi?b$|-(\d{2,3})g$", name):
        size = int(stated[1] or stated[2])
        return size, size
    form = r"(?:-(?:sxm\d?|pcie))?"  # whatever else follows may say that it is a part
    return next((one for words, one in _MEMORY_GB.items() if re.fullmatch(f"{_MAKER}(?:{words}){form}", name)), None)


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether a build for these architectures runs on a device of this compute capability.

    Binaries (sm_80) run on devices of the same major number and at least the same minor one, PTX (compute_80) on all
    newer ones; what ends in `a` on that very one alone.

    >>> has_kernels((8, 6), ["sm_80", "sm_90"]), has_kernels((7, 0), ["sm_75", "sm_90", "compute_120"])
    (True, False)
    """
    for text in architectures:
        if (found := _ARCHITECTURE.fullmatch(text)) is None:
            continue
        built_for = (int(found[2]), int(found[3]))
        if capability == built_for:
            return True
        is_newer = capability > built_for and (found[1] == "compute" or capability[0] == built_for[0])
        if is_newer and found[4] != "a":
            return True
    return False


def range_of(architectures: Iterable[str]) -> str:
    """Describe what a build has code for, in short.

    >>> range_of(["sm_75", "sm_90a", "compute_120"]), range_of(["sm_90"])
    ('7.5 to 12.0', '9.0')
    """
    known = sorted({(int(one[2]), int(one[3])) for one in map(_ARCHITECTURE.fullmatch, architectures) if one})
    ends = dict.fromkeys(f"{major}.{minor}" for major, minor in (known[:1] + known[-1:]))
    return " to ".join(ends) or "no GPU"


@contextmanager
def gpu_sampled(work: Work, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Note in `work` the mean share of time in which the GPU computed; nothing where the stage was given none.

    Where the driver's tool is missing, or does not know (parts of a GPU), the log says so.
    """
    gpus = visible_gpus(environment) if num_given_gpus(environment) else ()
    if not gpus:
        yield
        return
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            [*command, f"--id={gpus[0]}", f"--loop={SAMPLE_INTERVAL_S}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            errors="replace",
        )
    except OSError as error:
        logger.info("how busy the GPU is stays unknown: nvidia-smi cannot be started (%s)", error)
        yield
        return
    reader = threading.Thread(target=_read, args=(process, work), daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        reader.join(END_S)
        if work.gpu_busy is None:
            logger.info("how busy the GPU was is not known: nvidia-smi gave no number for %s", gpus[0])
        else:
            logger.info(
                "the GPU had a kernel to run %.0f%% of the time, however small (nvidia-smi)", 100 * work.gpu_busy
            )


def _read(process: subprocess.Popen[str], work: Work) -> None:
    """Keep the mean of what is printed, per cent on a line each; [N/A] for parts of a GPU."""
    total = count = 0
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.strip().isdigit():
                total, count = total + int(line), count + 1
                work.gpu_busy = total / count / 100
