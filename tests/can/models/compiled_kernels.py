"""Compile the kernels for GPUs that are not here, in a process of its own, and print what each takes as JSON.

Without a device: Triton brings the assembler along, which says how many registers a kernel takes, and whether it has to
put some of them into memory.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kdgat.can.models import triton_kernels
from kdgat.can.models.attention_triton import _shape

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
KERNELS = ("attend_forward", "attend_backward_by_target", "attend_backward_by_source")
EDGES = ("source", "ptr", "target", "by_source", "source_ptr")
SINGLE = ("largest", "total", "gradient_of_score", "attention")


def compile_kernel(name: str, capability: int, of_values: str, heads: int, channels: int) -> dict[str, object]:
    """Return what a kernel takes on GPUs of a capability, for values of a type that a layer with H heads of C has."""
    kernel = getattr(triton_kernels, name)
    shape = _shape(heads, channels)
    signature: dict[str, str] = {}
    for argument in kernel.arg_names:
        if argument in shape:
            signature[argument] = "constexpr"
        elif argument == "slope":
            signature[argument] = "fp32"
        elif argument.endswith("_stride"):
            signature[argument] = "i32"
        elif argument in EDGES:
            signature[argument] = "*i64"
        else:
            signature[argument] = "*fp32" if argument in SINGLE else f"*{of_values}"
    place = {argument: (kernel.arg_names.index(argument),) for argument in kernel.arg_names}
    constants = {place[argument]: shape[argument] for argument, kind in signature.items() if kind == "constexpr"}
    # As at a launch: addresses and long strides are multiples of 16, which makes wide loads of narrow ones.
    aligned = {
        place[argument]: [["tt.divisibility", 16]]
        for argument, kind in signature.items()
        if kind.startswith("*") or (kind == "i32" and heads * channels % 16 == 0)
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": shape["num_warps"]}
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    ptx = compiled.asm["ptx"]
    return {
        "kernel": name,
        "capability": capability,
        "of_values": of_values,
        "shape": [heads, channels],
        "warps": shape["num_warps"],
        "shared": compiled.metadata.shared,
        "barriers": len(re.findall(r"\bbar\.sync|\bbarrier\.sync", ptx)),
        "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
        **found,
    }


if __name__ == "__main__":
    capabilities, kinds, sizes = json.loads(sys.argv[1])
    found = [
        compile_kernel(name, capability, kind, *size)
        for capability in capabilities
        for kind in kinds
        for size in sizes
        for name in KERNELS
    ]
    print(json.dumps(found))
