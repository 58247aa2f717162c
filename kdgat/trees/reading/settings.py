"""How files of trees are read, and how much damage a folder may have."""

from typing import Literal

from pydantic import Field

from kdgat.base import Config


class ReadSettings(Config):
    """Choose what becomes of files that leave a choice. Importing this loads no reader."""

    components: Literal["largest", "join"] = Field(
        "largest",
        description="of an SWC file with several roots keep the largest component, or join all to the first root",
    )
    """Of an SWC file with several roots keep the component with most nodes, or join all to the first root."""
    mask_root: Literal["widest", "centre"] = Field(
        "widest",
        description=(
            "root of a mask's tree: widest, the pixel of the largest radius, or centre, the nearest to the middle"
        ),
    )
    """Root of a mask's tree: the pixel of the largest radius, or the one nearest to the middle."""
    tolerance: float | None = Field(
        default=None,
        ge=0.0,
        description=(
            "ends of river lines this near to each other are one, in the map's unit; null: a millionth of its extent"
        ),
    )
    """Ends of river lines nearer to each other are one, in the map's unit; None: a millionth of the map's extent."""
    # Absent from the identity of stages where it is 1: trees that were prepared before it came stay in use.
    spanning_trees: int = Field(
        default=1,
        ge=1,
        exclude_if=lambda value: value == 1,
        description=(
            "of a network with loops: 1 takes the shortest paths to the root; more: so many random spanning "
            "trees, of which training sees another one each epoch and measurements take the mean"
        ),
    )
    """Of a network with loops: 1 takes the shortest paths to the root; more: so many random spanning trees."""
    max_bad_fraction: float = Field(
        default=0.05, ge=0.0, le=1.0, description="share of files that may be unusable before the folder is refused"
    )
    """Share of files up to which unusable ones are left out and listed; more refuses the folder."""
