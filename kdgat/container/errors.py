"""What a user can do wrong with images."""

from kdgat.base.errors import UserError


class ImageError(UserError):
    """An image cannot be built, used or described; the text names what is wrong and the fix."""
