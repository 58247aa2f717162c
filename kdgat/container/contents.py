"""What `%test` asks inside an image: is everything there that the lock says, in these versions, and can it be used?"""

import argparse
import ctypes
import importlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from kdgat.container import ImageError
from kdgat.stage.families import family_names, family_package

# Name, version, and what follows on this line and on those that are indented.
_PIN: Final = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)(.*(?:\n[ \t].*)*)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
# Made by `python -m venv` or built from the checkout: no lock names them.
_BESIDE_THE_LOCK: Final = {"kdgat", "pip", "setuptools"}
# The least module of Python: what Triton compiles for each kernel is one, too.
_MODULE: Final = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kdgat_compiled", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_kdgat_compiled(void) { return PyModule_Create(&module); }
"""


def read_pins(text: str) -> dict[str, str]:
    """Read name and version of each requirement of a lock, names as package indexes compare them."""
    pins = _PIN.findall(text)
    if not pins or len(pins) != len(re.findall(r"^[^\s#]", text, re.MULTILINE)):
        raise ImageError("this is no lock: every requirement must be pinned as name==version")
    return {canonicalize_name(name): version for name, version, _ in pins}


def read_hashes(text: str) -> dict[str, set[str]]:
    """Read the hashes of each requirement of a lock."""
    return {canonicalize_name(name): set(_HASH.findall(rest)) for name, _, rest in _PIN.findall(text)}


def compare_with_lock(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """State what is missing, what has another version, and what no lock asked for."""
    missing = [f"{name} {version} is missing" for name, version in pins.items() if name not in installed]
    other = [
        f"{name} is {installed[name]}, the lock says {version}"
        for name, version in pins.items()
        if name in installed and installed[name] != version
    ]
    foreign = [f"{name} {installed[name]} is not in the lock" for name in installed if name not in pins]
    return missing + other + [line for line in foreign if line.split()[0] not in _BESIDE_THE_LOCK]


def find_faults(lock: Path, python_minor: str, modules: Sequence[str]) -> list[str]:
    """Compare this interpreter with a lock, import the modules, try Triton's compiler and the places for files."""
    faults = []
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != python_minor:
        faults.append(f"Python is {running}, not {python_minor}")
    installed: dict[str, str] = {canonicalize_name(found.name): found.version for found in metadata.distributions()}
    faults += compare_with_lock(read_pins(lock.read_text()), installed)
    faults += filter(None, map(_import_fault, modules))
    if importlib.util.find_spec("triton"):
        faults += filter(None, [_compiler_fault()])
    if not os.access(tempfile.gettempdir(), os.W_OK):
        faults.append(f"{tempfile.gettempdir()} cannot be written to")
    return faults


def has_driver() -> bool:
    """Return whether NVIDIA's driver is here, which RAPIDS needs for being imported; inside an image only with --nv."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _import_fault(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever an import can raise is the answer that is asked for
        return f"import {module}: {type(error).__name__}: {error}"
    return None


def _compiler_fault() -> str | None:
    """Compile and load a module as Triton does before it launches a kernel, which wants no GPU."""
    from triton.runtime.build import compile_module_from_src

    try:
        compile_module_from_src(_MODULE, "kdgat_compiled")
    except Exception as error:  # of compiler, headers, linker or folder: whatever fails is the answer
        return f"Triton cannot compile its launchers: {type(error).__name__}: {error}"
    return None


def _missing_fault(module: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"module {module} is missing"


def main(command_line: Sequence[str] | None = None) -> int:
    """Print every fault, or one line if there is none; the exit status says which."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.container.contents", description=__doc__)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--python", required=True, help="minor version, as 3.11")
    parser.add_argument("--need-driver", default="", metavar="MODULE,MODULE", help="imported only where NVIDIA's is")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    arguments = parser.parse_args(command_line)
    modules = [*arguments.modules, *(f"{family_package(name)}.stages" for name in family_names())]
    faults = find_faults(arguments.lock, arguments.python, modules)
    need_driver = [name for name in arguments.need_driver.split(",") if name]
    if not need_driver or has_driver():
        faults += filter(None, map(_import_fault, need_driver))
    else:
        faults += filter(None, map(_missing_fault, need_driver))
        names = ", ".join(need_driver)
        print(f"no NVIDIA driver here, so not imported: {names}; on a node with GPUs: kdgat image test --nv")
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        num_pins = len(read_pins(arguments.lock.read_text()))
        print(f"{num_pins} packages as in the lock, {len(modules)} modules, Python {arguments.python}: good")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
