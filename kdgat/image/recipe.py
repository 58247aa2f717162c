"""The one source of both images: what they share is the code below, where they differ is VARIANTS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kdgat.image.definition import Copy, Definition, Stage
from kdgat.image.errors import ImageError
from kdgat.stage.container import CACHES, GPU_CACHES, PREFIX

PYTHON: Final = f"{PREFIX}/bin/python"
PYTHON_MINOR: Final = "3.11"
LOCK_IN_IMAGE: Final = f"{PREFIX}/share/kdgat/requirements.lock"
# Names in the directory that a build starts from; %files copies them from there.
WHEELS: Final = "wheels"
LOCK: Final = "requirements.lock"
# Docker Official Image python:3.11-slim-bookworm (Python 3.11.16). The digest alone decides, and Apptainer
# refuses a tag beside it.
DEFAULT_AGENT: Final = "docker"
DEFAULT_BASE: Final = "python@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"


@dataclass(frozen=True)
class Variant:
    """What one image has and the other has not."""

    name: str
    title: str
    # Beside pyproject.toml's dependencies; a requirement here takes the place of one with the same name there.
    requirements: tuple[str, ...]
    # Names that constraints.txt may not decide here, each with a reason in VARIANTS.
    unconstrained: tuple[str, ...]
    # Whether wheels may come from the extra indexes and folders of pip's configuration, or from its main index alone.
    uses_extra_indexes: bool
    # Imported by %test beside IMPORTS, where NVIDIA's driver is.
    imports: tuple[str, ...]
    # Caches beside CACHES: variable to folder.
    caches: Mapping[str, str]

    @property
    def file_stem(self) -> str:
        """Name of the definition, the lock and the image, without ending."""
        return "kdgat" if self.name == "gpu" else f"kdgat-{self.name}"


VARIANTS: Final = {
    "cpu": Variant(
        name="cpu",
        title="kdgat for processors: PyTorch without CUDA, PyTorch Geometric",
        requirements=("torch==2.13.0+cpu",),  # the index of PyTorch has this build; it is a tenth of the one with CUDA
        unconstrained=(),
        uses_extra_indexes=True,
        imports=(),
        caches={},
    ),
    "gpu": Variant(
        name="gpu",
        title="kdgat for GPUs: CUDA 13 (driver 580 or newer), PyTorch, PyTorch Geometric, cuDF, cuML, cuGraph",
        # Not cugraph-cu13: it alone pins dask to 2026.7.1, and scheduler and worker must have the same.
        requirements=(
            "torch==2.13.0",  # what PyPI has under this number is the build for CUDA 13
            "cudf-cu13==26.10.*",
            "cuml-cu13==26.10.*",
            "pylibcugraph-cu13==26.10.*",
            "cugraph-pyg-cu13==26.10.*",
        ),
        unconstrained=("numba", "llvmlite"),  # RAPIDS 26.10 needs numba below 0.65
        uses_extra_indexes=False,  # one with a build for processors would win: 2.13.0+cpu counts as newer than 2.13.0
        imports=("cudf", "cuml", "pylibcugraph", "cugraph_pyg", "cupy", "rmm"),
        caches=GPU_CACHES,
    ),
}

# Which of pyproject.toml's optional dependencies a node needs: groups as a whole, or single packages of one. The rest
# (command line, report, submission of jobs) stays on the login node.
NODE_GROUPS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "data": None,
    "flows": ("prefect", "fastapi", "sqlalchemy", "distributed", "cryptography"),
    "report": ("scikit-learn",),
}
IMPORTS: Final = (
    "torch", "torch_geometric", "lightning", "h5py", "numpy", "pydantic", "yaml", "safetensors", "polars", "numba",
    "sklearn", "distributed", "cryptography", "prefect", "kdgat.stage", "kdgat.can.stages", "kdgat.cluster.worker",
)  # fmt: skip

_COMMENT: Final = """\
Rendered from kdgat/image/recipe.py by `kdgat image render`: change it there.
Build it by `kdgat image build {name}`, which provides {wheels}/ and {lock} and fills in the labels."""

_INSTALL: Final = """\
set -eu
export PIP_CONFIG_FILE=/dev/null PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
umask 022
python3 -m venv --without-pip {prefix}
python3 -m venv /opt/installer
install_wheels() {{
    /opt/installer/bin/python -m pip --python {python} install --quiet --no-compile --root-user-action ignore \\
        --no-index --find-links /opt/build/{wheels} "$@"
}}
install_wheels --require-hashes --no-deps --requirement /opt/build/{lock}
install_wheels --no-deps kdgat=={{{{ VERSION }}}}
install -D -m 644 /opt/build/{lock} {lock_in_image}
# Not compared with their sources at run time, so that neither copying nor a read-only image makes Python compile again.
{python} -m compileall -q -j 0 --invalidation-mode unchecked-hash {prefix}/lib >/dev/null ||
    echo "files for other versions of Python stay uncompiled; the test imports those that count"
chmod -R a+rX {prefix}
rm -rf /opt/build /opt/installer"""

_ENVIRONMENT: Final = """\
export PATH="{prefix}/bin:/usr/local/bin:/usr/bin:/bin"
# Only what is inside counts: no packages of the user, of the working directory, or of a virtual environment outside.
# Emptied, not unset, because Apptainer adds the host's variables later, where these lines have set none.
export PYTHONPATH= PYTHONHOME= PYTHONSTARTUP= PYTHONUSERBASE= VIRTUAL_ENV= CONDA_PREFIX=
export PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
export LANG=C.UTF-8 LC_ALL=C.UTF-8
# For the same reason the host's TMPDIR is unknown here; /tmp is the node's. Jobs name the folder that their site has on
# the node (APPTAINERENV_NUMBA_CACHE_DIR and so on).
kdgat_caches="/tmp/kdgat-caches-$(id -u)"
{caches}
unset kdgat_caches"""

_TEST: Final = """\
exec {python} -m kdgat.image.contents --lock {lock_in_image} --python {minor} \\
    {imports}"""

_HELP: Final = """\
{title}.

python is {python}; the container runs it with the words that follow:
apptainer run IMAGE -m kdgat.stage DIRECTORY
apptainer exec IMAGE python ...
What is inside: {lock_in_image}. Check it: apptainer test IMAGE."""


def find_variant(name: str) -> Variant:
    """Return the variant of that name; ImageError lists the names there are."""
    if name not in VARIANTS:
        raise ImageError(f"image {name!r} is unknown: choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def define(variant: Variant) -> Definition:
    """Compose the definition of one image: stage `build` installs, stage `runtime` takes over what was installed."""
    base = {"AGENT": DEFAULT_AGENT, "BASE": DEFAULT_BASE}
    fields = {"prefix": PREFIX, "python": PYTHON, "wheels": WHEELS, "lock": LOCK, "lock_in_image": LOCK_IN_IMAGE}
    build = Stage(
        bootstrap="{{ AGENT }}",
        base="{{ BASE }}",
        name="build",
        arguments={**base, "VERSION": "0"},
        files=(Copy(WHEELS, f"/opt/build/{WHEELS}"), Copy(LOCK, f"/opt/build/{LOCK}")),
        sections={"post": _INSTALL.format(**fields)},
    )
    caches = "\n".join(
        f'export {name}="$kdgat_caches/{folder}"' for name, folder in {**CACHES, **variant.caches}.items()
    )
    rows = [" ".join(IMPORTS[start : start + 6]) for start in range(0, len(IMPORTS), 6)]
    if variant.imports:
        rows.insert(0, f"--need-driver {','.join(variant.imports)}")
    runtime = Stage(
        bootstrap="{{ AGENT }}",
        base="{{ BASE }}",
        name="runtime",
        arguments={
            **base, "VERSION": "0", "REVISION": "unknown", "SOURCE": "unknown", "BASE_NAME": "unknown",
            "BASE_DIGEST": "unknown", "LOCK_SHA256": "unknown",
        },
        files=(Copy(PREFIX, PREFIX, stage="build"),),
        sections={
            "post": f"set -eu\nchmod -R a+rX {PREFIX}\nrm -rf /root/.cache /var/cache/apt /var/lib/apt/lists",
            "environment": _ENVIRONMENT.format(**fields, caches=caches),
            "runscript": f'exec {PYTHON} "$@"',
            "test": _TEST.format(**fields, minor=PYTHON_MINOR, imports=" \\\n    ".join(rows)),
            "help": _HELP.format(**fields, title=variant.title),
        },
        labels={
            "org.opencontainers.image.title": variant.title,
            "org.opencontainers.image.version": "{{ VERSION }}",
            "org.opencontainers.image.revision": "{{ REVISION }}",
            "org.opencontainers.image.source": "{{ SOURCE }}",
            "org.opencontainers.image.base.name": "{{ BASE_NAME }}",
            "org.opencontainers.image.base.digest": "{{ BASE_DIGEST }}",
            "kdgat.variant": variant.name,
            "kdgat.lock.sha256": "{{ LOCK_SHA256 }}",
        },
    )  # fmt: skip
    return Definition((build, runtime), comment=_COMMENT.format(name=variant.name, wheels=WHEELS, lock=LOCK))
