"""`python -m tests.golden`: write the files anew."""

from tests.golden.record import record

record()
