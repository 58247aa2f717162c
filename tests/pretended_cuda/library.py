"""The C++ beside this, compiled for the torch that is installed and loaded before torch itself is imported."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("hooks.cpp")


def missing() -> str:
    """Return what this machine lacks for pretended CUDA; empty if nothing."""
    if (_torch() / "lib/libtorch_cuda.so").exists():
        return "torch is built with CUDA: pretended CUDA needs the build for processors"
    if shutil.which("g++") is None:
        return "a C++ compiler is missing: apt-get install g++"
    return ""


def load() -> None:
    """Load the hooks into this process; RuntimeError if torch came before."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already: pretended CUDA must come first (pytest -p, not in a conftest)")
    folder = _torch()
    compiled = _compiled(folder)
    ctypes.CDLL(str(folder / "lib/libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "lib/libtorch_cpu.so"))
    ctypes.CDLL(str(compiled))


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("torch is not installed")
    return Path(found.submodule_search_locations[0])


def _compiled(torch: Path) -> Path:
    """Return the library, compiled (seconds) unless it is there for this source, torch and user."""
    version = importlib.metadata.version("torch")
    name = hashlib.sha256(SOURCE.read_bytes() + f"{version} {torch}".encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"kdgat-pretended-cuda-{os.getuid()}", f"{name}.so")
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{torch}/include", str(SOURCE), "-o", str(made)]
        subprocess.run([*command, f"-L{torch}/lib", "-lc10", "-ltorch_cpu"], check=True)
        made.replace(path)  # two workers may compile at once
    return path
