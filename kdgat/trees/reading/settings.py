"""How files of trees are read, and how much damage a folder may have."""

from typing import Literal

from pydantic import Field

from kdgat.base import Config


class ReadSettings(Config):
    """Choose what becomes of files that leave a choice. Importing this loads no reader."""

    components: Literal["largest", "join"] = "largest"
    """Of an SWC file with several roots keep the component with most nodes, or join all to the first root."""
    mask_root: Literal["widest", "centre"] = "widest"
    """Root of a mask's tree: the pixel of the largest radius, or the one nearest to the middle."""
    tolerance: float | None = Field(default=None, ge=0.0)
    """Ends of river lines nearer to each other are one, in the map's unit; None: a millionth of the map's extent."""
    # Absent from the identity of stages where it is 1: trees that were prepared before it came stay in use.
    spanning_trees: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)
    """Of a network with loops: 1 takes the shortest paths to the root; more: so many random spanning trees."""
    max_bad_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of files up to which unusable ones are left out and listed; more refuses the folder."""
