"""Container images: building them, and whether one fits the kdgat that hands stages to it.

In: a checkout, a definition of `containers/`, a lock. Out: an Apptainer image that was tested, and its digest; before a
run the agreement of versions and sources inside and outside, and what a stage sees of the machine. Read `build.py`
first, then `agreement.py`; `apptainer.py` is the only module that calls Apptainer.
"""

from kdgat.base import UserError


class ImageError(UserError):
    """An image cannot be built, used or described; the text names what is wrong and the fix."""
