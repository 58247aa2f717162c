"""What a user can do wrong with images."""


class ImageError(ValueError):
    """An image cannot be built, used or described; the text names what is wrong and the fix."""
