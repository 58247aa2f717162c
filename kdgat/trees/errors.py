"""What users can do wrong with trees."""


class TreesError(ValueError):
    """Trees, files or settings that cannot be used; the text names the place, the value and the fix."""


class TreeError(TreesError):
    """Nodes that are no rooted tree."""
