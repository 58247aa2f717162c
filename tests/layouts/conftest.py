"""The family `toy`, of which the run in the layouts is."""

from tests.family.conftest import toy as toy
