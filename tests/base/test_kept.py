"""Files of a newer kdgat are named as such."""

import pytest

from kdgat.base import UserError
from kdgat.base.kept import refuse_newer


@pytest.mark.parametrize("version", [2, 1.5, 10**400])
def test_a_schema_beyond_what_is_known_is_refused_however_large(version: float) -> None:
    refuse_newer({"schema_version": 1}, "a.json")
    with pytest.raises(UserError, match="newer kdgat"):
        refuse_newer({"schema_version": version}, "a.json")
