"""The image that a site's stages run in: checked before anything is submitted, and before each attempt again."""

import os
import threading
from pathlib import Path
from typing import Final

from kdgat.cluster import Site
from kdgat.cluster.child import OnLine
from kdgat.container.agreement import ImageNotes, check_named_image
from kdgat.stage.provenance import IMAGE_DIGEST_VARIABLE, IMAGE_STAMP_VARIABLE, IMAGE_VARIABLE

DEFAULT_PYTHON: Final = "python"


class NodeImage:
    """The image of one run, whose file somebody may replace while the run lasts; used by several threads."""

    def __init__(self, site: Site) -> None:
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
