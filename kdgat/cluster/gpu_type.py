"""Whether the GPUs that jobs of a site get are ones that torch has code and a driver for, before anything is submitted.

What hides behind a site's `gpu_type` is known of common names, and of what `kdgat doctor --site NAME --gpus 1` met on a
node, which is kept with this user's caches.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from kdgat.base import write_json_atomically
from kdgat.cluster.site import Site, SiteError
from kdgat.container.layout import cache_folder
from kdgat.stage.gpus import AMPERE, FOR_CUDA_12, OF_AMPERE, Card, capability_of, has_kernels, range_of

_FIRST_OF_CUDA_12: Final = (7, 0)  # of the cards that the image has code for


class TorchBuild(BaseModel):
    """What a torch is built for, as `kdgat.container.probe.describe_torch` says it."""

    torch: str
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    driver: int = 0  # the least one that it starts with; 0: not known


class SeenCard(BaseModel):
    """A card that a job of a site was given."""

    name: str
    capability: tuple[int, int]
    driver: str
    day: str


_SEEN: Final = TypeAdapter(dict[str, SeenCard])  # by gpu_type


def check_gpus(site: Site, gpu_types: Iterable[str | None], build: TorchBuild, whose: str) -> Iterator[str]:
    """Compare what jobs will get with the torch that they will run; yield a sentence for what cannot be compared.

    Args:
        site: names itself, and what was seen on its nodes.
        gpu_types: that jobs ask for; None is any.
        build: the torch of the nodes.
        whose: that torch in a sentence, as its image.

    Raises:
        SiteError: if torch cannot use such a card, naming both and the fix.
    """
    if build.hip is not None:
        return
    if build.cuda is None:
        raise SiteError(
            f"site {site.name}: stages ask for a GPU, and {whose} (torch {build.torch}) is built without CUDA: "
            f"{FOR_CUDA_12}, or ask for none (--gpus 0)"
        )
    for gpu_type in filter(None, dict.fromkeys(gpu_types)):
        seen = seen_card(site, gpu_type)
        capability = capability_of(gpu_type) if seen is None else seen.capability
        if capability is None:
            yield (
                f"site {site.name}: which GPU gpu_type {gpu_type} is, is not known, so whether {whose} has code for it "
                f"is not checked: kdgat doctor --site {site.name} --gpus 1 looks at one"
            )
        elif not has_kernels(capability, build.architectures):
            raise SiteError(
                f"site {site.name} gives {gpu_type} ({capability[0]}.{capability[1]}); {whose} has code for "
                f"{range_of(build.architectures)}: {_fix(capability, build)}"
            )
        if seen is not None and int(seen.driver.partition(".")[0]) < build.driver:
            fix = "name another gpu_type" if build.cuda.startswith("12.") else FOR_CUDA_12
            raise SiteError(
                f"site {site.name} had driver {seen.driver} for {gpu_type} on {seen.day}, and CUDA {build.cuda} of "
                f"{whose} needs {build.driver} or newer: {fix}, or, if it is renewed, look again (kdgat doctor --site "
                f"{site.name} --gpus 1; that of then is kept in {_place(site)})"
            )


def check_precision(site: Site, gpu_type: str, precision: str) -> None:
    """Refuse a precision that cards of this type have no units for, where they are known.

    Raises:
        SiteError: naming card, precision and fix.
    """
    seen = seen_card(site, gpu_type)
    capability = capability_of(gpu_type) if seen is None else seen.capability
    if precision in OF_AMPERE and capability is not None and capability < AMPERE:
        raise SiteError(
            f"site {site.name} gives {gpu_type} ({capability[0]}.{capability[1]}), and training.precision={precision} "
            "needs a GPU of capability 8.0 (A100) or newer: use 32-true or 16-mixed, or another gpu_type"
        )


def _fix(capability: tuple[int, int], build: TorchBuild) -> str:
    if capability < _FIRST_OF_CUDA_12:
        return "no image has any for it; name another gpu_type"
    if has_kernels(capability, [f"compute_{one.partition('_')[2]}" for one in build.architectures]):  # it is newer
        return "use a newer one, as in the image for CUDA 13 (kdgat image build gpu-cuda13), or another gpu_type"
    return f"{FOR_CUDA_12}, or another gpu_type"


def keep_card(site: Site, gpu_type: str, card: Card) -> None:
    """Keep what a job was given that asked for this type; where nothing can be written, it is lost."""
    seen = {**_read(site), gpu_type: SeenCard(**card._asdict(), day=datetime.now(UTC).date().isoformat())}
    with suppress(OSError):
        _place(site).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(_place(site), _SEEN.dump_python(seen, mode="json"))


def seen_card(site: Site, gpu_type: str) -> SeenCard | None:
    """Return what a job was given that asked for this type, if one looked."""
    return _read(site).get(gpu_type)


def _place(site: Site) -> Path:
    return cache_folder("sites") / f"{re.sub(r'[^A-Za-z0-9._-]', '-', site.name)}.json"


def _read(site: Site) -> dict[str, SeenCard]:
    try:
        return _SEEN.validate_json(_place(site).read_bytes())
    except (OSError, ValidationError):  # none yet, or of another kdgat: what can be looked at again
        return {}
