"""The images there are: what each installs beside pyproject.toml. `containers/*.def` say how they are built."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kdgat.container import ImageError
from kdgat.container.layout import PREFIX

PYTHON_MINOR: Final = "3.11"
LOCK_IN_IMAGE: Final = f"{PREFIX}/share/kdgat/requirements.lock"
# Names in the directory that a build starts from; %files of the definitions copies them from there.
WHEELS: Final = "wheels"
LOCK: Final = "requirements.lock"
# Which of pyproject.toml's optional dependencies a node needs: groups as a whole, or single packages of one. The rest
# (report, submission of jobs) stays on the login node.
NODE_GROUPS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "data": None,
    "trees": None,
    "flows": ("prefect", "distributed", "cryptography"),
}


@dataclass(frozen=True)
class Variant:
    """What one image installs and the others do not."""

    name: str
    # Name of the definition, the lock and the image, without ending.
    file_stem: str
    # Beside pyproject.toml's dependencies; a requirement here takes the place of one with the same name there.
    requirements: tuple[str, ...]
    # Names that constraints.txt may not decide here, each with a reason in VARIANTS.
    unconstrained: tuple[str, ...] = ()
    # Requirements that take the place of what packages ask for, each with a reason in VARIANTS.
    overrides: tuple[str, ...] = ()
    # Whether wheels may come from the extra indexes and folders of pip's configuration, or from its main index alone.
    uses_extra_indexes: bool = True


VARIANTS: Final = {
    "cpu": Variant(
        name="cpu",
        file_stem="kdgat-cpu",
        requirements=("torch==2.13.0+cpu",),  # the index of PyTorch has this build; it is a tenth of the one with CUDA
    ),
    # Not cugraph-cu12 or -cu13: it alone pins dask to 2026.7.1, and scheduler and worker must have the same.
    "gpu": Variant(
        name="gpu",
        file_stem="kdgat",
        requirements=(
            "torch==2.10.0",  # the last one with code for Volta; what PyPI has under this number is for CUDA 12.8
            "cudf-cu12==26.10.*",
            "cuml-cu12==26.10.*",
            "pylibcugraph-cu12==26.10.*",
            "cugraph-pyg-cu12==26.10.*",
            "ziglang==0.17.*",  # a C compiler, which Triton wants where it runs; the base has none
        ),
        unconstrained=("numba", "llvmlite", "torch", "triton"),  # RAPIDS needs numba below 0.65; torch pins its triton
        # torch pins 12.8.93, and RAPIDS links code of 12.9: within CUDA 12 the newer library serves both.
        overrides=("nvidia-nvjitlink-cu12>=12.9",),
        uses_extra_indexes=False,  # one with a build for processors would win: 2.10.0+cpu counts as newer than 2.10.0
    ),
    "gpu-cuda13": Variant(
        name="gpu-cuda13",
        file_stem="kdgat-cuda13",
        requirements=(
            "torch==2.13.0",  # what PyPI has under this number is the build for CUDA 13
            "cudf-cu13==26.10.*",
            "cuml-cu13==26.10.*",
            "pylibcugraph-cu13==26.10.*",
            "cugraph-pyg-cu13==26.10.*",
            "ziglang==0.17.*",  # as above
        ),
        unconstrained=("numba", "llvmlite"),
        uses_extra_indexes=False,
    ),
}


def find_variant(name: str) -> Variant:
    """Return the variant of that name; ImageError lists the names there are."""
    if name not in VARIANTS:
        raise ImageError(f"image {name!r} is unknown: choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]
