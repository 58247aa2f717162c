"""The error of a user: what the person who gave a command, a file or a setting can put right."""


class UserError(ValueError):
    """Something that was given cannot be used; the text names it, its value and the fix.

    Commands print the text alone and end with exit code 2. A class of its own is derived only where some `except` names
    it, or where callers of a library need to tell it from others.
    """
