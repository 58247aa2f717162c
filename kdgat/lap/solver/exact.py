"""The solver by its old name, for one release: use `kdgat.assignment`."""

from kdgat.assignment import linear_sum_assignment as linear_sum_assignment
from kdgat.assignment import solve as solve
