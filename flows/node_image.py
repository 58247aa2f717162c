"""The image that a site's stages run in: checked before anything is submitted, and before each attempt again.

Its torch is compared with the GPUs that jobs will get; without an image, that of the Python that runs stages.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from kdgat.base import ConfigurationError
from kdgat.base.configuration import values_of
from kdgat.cluster import ResourceRequest, Resources, Site
from kdgat.cluster.child import OnLine
from kdgat.cluster.gpu_type import TorchBuild, check_gpus, check_precision
from kdgat.cluster.request import stage_resources
from kdgat.container import probe
from kdgat.container.agreement import (
    PROBE_TIMEOUT_S,
    ImageNotes,
    check_named_image,
    find_image,
    torch_of_image,
)
from kdgat.run import PlannedStage, Run
from kdgat.stage.gpus import visible_gpus
from kdgat.stage.provenance import IMAGE_DIGEST_VARIABLE, IMAGE_STAMP_VARIABLE, IMAGE_VARIABLE

DEFAULT_PYTHON: Final = "python"


class NodeImage:
    """The image of one run, whose file somebody may replace while the run lasts; used by several threads."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.name = site.image
        self._python = site.python or DEFAULT_PYTHON
        self._lock = threading.Lock()
        self._last: ImageNotes | None = None

    def check(self, log: OnLine = lambda line: None) -> dict[str, str]:
        """Check that the image is that of this kdgat; return what an attempt in it has in its environment.

        Args:
            log: gets a sentence where the image cannot be checked from here, or is another one than last time.

        Raises:
            ImageError: if the image is not there or does not run.
            ImageError: if its versions are others than those of this process.
        """
        if self.name is None:
            return {}
        with self._lock:
            notes = check_named_image(self.name, self._python, log)
            if notes is None:
                return {IMAGE_VARIABLE: self.name}
            if self._last is not None and self._last.sha256 != notes.sha256:
                log(
                    f"image {self.name} was replaced while this run lasts: sha256 {notes.sha256}, was "
                    f"{self._last.sha256}; it fits this kdgat, and what starts now runs in the new one"
                )
            self._last = notes
        path = Path(os.path.expandvars(self.name)).absolute()
        return {IMAGE_VARIABLE: str(path), IMAGE_DIGEST_VARIABLE: notes.sha256, IMAGE_STAMP_VARIABLE: notes.stamp}

    def check_gpus(self, asked: Iterable[Resources], log: OnLine = lambda line: None) -> None:
        """Refuse GPUs that the torch of the nodes has no code for, or too new a CUDA for their driver.

        Args:
            asked: what jobs ask for.
            log: gets a sentence where that cannot be known from here.

        Raises:
            SiteError, ImageError: as `kdgat.cluster.gpu_type.check_gpus`, and where the image cannot be asked.
        """
        gpu_types = [resources.gpu_type for resources in asked if resources.gpus]
        if not gpu_types or self._site.scheduler == "local":
            return
        if self.name is not None:
            path = find_image(self.name)
            if path is None:  # which `check` has said
                return
            found: dict[str, Any] | None = torch_of_image(path, os.path.expandvars(self._python))
            whose = f"image {self.name}"
        else:
            python = os.path.expandvars(self._site.python or sys.executable)
            is_shared = self._site.python is not None or shutil.which("sbatch") is not None  # else of no node
            found, whose = torch_of_python(python) if is_shared else None, f"the torch of {python}"
        if found is None:
            log(f"site {self._site.name}: {whose} cannot be asked here, so whether it has code for GPUs is not checked")
            return
        for sentence in check_gpus(self._site, gpu_types, TorchBuild.model_validate(found), whose):
            log(sentence)


@functools.cache
def torch_of_python(python: str) -> dict[str, Any] | None:
    """Ask a Python of this machine what its torch is built for; None where it is not here, or has none.

    In a process of its own: whoever plans and watches jobs does without torch, which takes seconds to import.
    """
    source = Path(probe.__file__).read_text(encoding="utf-8")
    try:
        answer = subprocess.run(
            [python, "-P", "-c", source, "torch"], capture_output=True, errors="replace", timeout=PROBE_TIMEOUT_S
        )
        return dict(json.loads(answer.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError, IndexError):
        return None


def check_gpus_of_run(run: Run, site: Site, command_line: ResourceRequest, log: OnLine = lambda line: None) -> None:
    """Compare the GPUs of a run's jobs with their precision and the torch of the nodes; log what needs one.

    Raises:
        ConfigurationError: on this machine, for an accelerator that is asked for by name and not there.
        SiteError, ImageError: as `stage_resources`, `check_precision` and `check_gpus`.
    """
    on_gpus = [one for one in run.plan if may_compute_on_gpu(one.config, one.execution)]
    if site.scheduler == "local":
        named = {name for one in run.plan for name in values_of([one.config, one.execution], "accelerator")}
        for name in sorted(named - {"auto", "cpu"}):
            _require_accelerator(name)
        _say_what_needs_a_gpu(run, lambda one: one in on_gpus and bool(visible_gpus()), "none is seen here", log)
        return
    names = sorted({one.stage for one in on_gpus})
    asked = {name: stage_resources(name, run.resources, site, command_line) for name in names}
    for one in on_gpus:
        resources = asked[one.stage]
        if resources.gpus and resources.gpu_type is not None:
            for precision in values_of([one.config, one.execution], "precision"):
                check_precision(site, resources.gpu_type, precision)
    _say_what_needs_a_gpu(
        run, lambda one: one in on_gpus and asked[one.stage].gpus > 0, "no job that trains asks for one", log
    )
    NodeImage(site).check_gpus(asked.values(), log)


def _say_what_needs_a_gpu(run: Run, has_gpu: Callable[[PlannedStage], bool], why: str, log: OnLine) -> None:
    """Say which keys change nothing because no stage that has them has a GPU; else only its own log says it."""
    for key in ("capture", "memory_snapshot"):
        wanting = [one for one in run.plan if any(values_of([one.config, one.execution], key))]
        if wanting and not any(map(has_gpu, wanting)):
            log(f"training.{key}=true changes nothing without a GPU, and {why}")


@functools.cache  # a sweep asks for each of its trials
def _require_accelerator(name: str) -> None:
    """Refuse what the first training stage would, which may be hours later; any other fault is that stage's to tell."""
    source = (
        "import sys\nfrom kdgat.base import ConfigurationError\nfrom kdgat.training.device import check_accelerator\n"
        "try:\n    check_accelerator(sys.argv[1])\nexcept ConfigurationError as error:\n    print(error)\n"
    )
    asked = subprocess.run([sys.executable, "-P", "-c", source, name], capture_output=True, errors="replace")
    if mistake := asked.stdout.strip():
        raise ConfigurationError(mistake)


def may_compute_on_gpu(config: dict[str, Any], execution: dict[str, Any]) -> bool:
    """Return whether a stage takes a GPU that it is given: unless each `accelerator` in its configuration is cpu."""
    accelerators = values_of([config, execution], "accelerator")
    return not accelerators or any(name != "cpu" for name in accelerators)
