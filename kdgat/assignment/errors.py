"""What goes wrong with cost matrices, and with the solver itself."""

from kdgat.base import UserError


class CostError(UserError):
    """A cost matrix, its mask or its seed duals cannot be used as given."""


class CostTypeError(CostError, TypeError):
    """Costs are of a type that has no order or no float64: scipy raises a TypeError for such."""


class InfeasibleError(UserError):
    """The allowed entries hold no matching of the whole smaller side.

    `matched` is the size of a largest matching. `rows` compete for only the columns `columns`, which are fewer: no
    other entry of these rows is allowed (Hall's condition). For a matrix with more rows than columns it is the other
    way round: the columns compete for too few rows.
    """

    def __init__(self, message: str, matched: int, rows: list[int], columns: list[int]) -> None:
        """Keep the evidence beside the message."""
        super().__init__(message)
        self.matched = matched
        self.rows = rows
        self.columns = columns

    def __reduce__(self) -> tuple[type, tuple[str, int, list[int], list[int]]]:
        """Let the error leave its process with its evidence."""
        return type(self), (str(self), self.matched, self.rows, self.columns)
