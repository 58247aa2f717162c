"""How the passes over all messages are compiled."""

from typing import Any, Final

# numba counts references to an array whenever it is sliced or handed to a function that is inlined, by an atomic
# instruction: dozens of them a message took more than half of the time. A pass that makes no array and returns none
# needs no counts. Whatever is called by it alone is compiled without them, too, and numba refuses what makes an array.
UNCOUNTED: Final[dict[str, Any]] = {"_nrt": False}
