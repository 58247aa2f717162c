"""For `pytest -p tests.pretended_cuda.plugin`: every test of the session has a GPU, which is pretended."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pretended_cuda import library
from tests.support.optional import lack

MISSING = library.missing()
if not MISSING:
    library.load()


@pytest.fixture(autouse=True)
def seen() -> Iterator[Any]:
    """Yield what the pretended device of the test is asked for."""
    if MISSING:
        lack(MISSING)
    from tests.pretended_cuda.device import pretended_cuda  # torch comes with the first test, not with pytest

    with pretended_cuda() as asked:
        yield asked
