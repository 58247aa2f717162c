"""Exact linear assignment: a cost matrix in, the cheapest matching of its rows and columns and a proof of it out.

In: costs [n, m] (arrays, lists, files), a mask of forbidden pairs, perhaps duals to start from. Out: an `Assignment`:
rows and columns of the matching, its cost, and duals u [n], v [m] that prove it optimal. A good start makes a solve
quicker, a bad one costs two passes over the matrix, none makes it wrong.

Limits: costs are float64, and whole numbers beyond 2**53 are rounded to it. All rows are matched, or all columns where
these are fewer; if that is impossible, InfeasibleError names the lines that compete, unless rows may be left unmatched
at a price (`unmatched_cost`). `solve_points` and `solve_blocks` need no matrix in memory; all else holds it once. The
first call on a machine waits some seconds for numba's compiler.

>>> from kdgat.assignment import linear_sum_assignment, solve
>>> cost = [[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]
>>> solve(cost)
Assignment(cost=5, dual_bound=5, 3 pairs of 3 rows and 3 columns)
>>> rows, columns = linear_sum_assignment(cost)  # as scipy's function of this name
>>> columns.tolist()
[1, 0, 2]

Who changes it reads `exact.py` first, then `certificate.py`, `core.py` and `search.py`; `small.py` for one compiled
call, `reoptimiser.py` for problems that come again, `large.py` for those without a matrix.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.assignment.batch import AssignmentBatch as AssignmentBatch
    from kdgat.assignment.batch import solve_batch as solve_batch
    from kdgat.assignment.certificate import CertificateError as CertificateError
    from kdgat.assignment.certificate import certify as certify
    from kdgat.assignment.errors import CostError as CostError
    from kdgat.assignment.errors import InfeasibleError as InfeasibleError
    from kdgat.assignment.exact import linear_sum_assignment as linear_sum_assignment
    from kdgat.assignment.exact import solve as solve
    from kdgat.assignment.files import read_cost as read_cost
    from kdgat.assignment.large import solve_blocks as solve_blocks
    from kdgat.assignment.large import solve_points as solve_points
    from kdgat.assignment.reoptimiser import Reoptimiser as Reoptimiser
    from kdgat.assignment.result import Assignment as Assignment

__all__, __getattr__, __dir__ = lazy_names(__name__)
