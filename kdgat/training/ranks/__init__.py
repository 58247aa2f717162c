"""Several processes at one fit, which are called its ranks: together they compute what one would.

In: a stage whose configuration, or whose GPUs, ask for more than one. Out: the same weights, in less time. Read
`group.py` first (what ranks say to each other), then `processes.py` (who starts and ends them) and `rank.py` (one).
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.training.ranks.group import FitOver as FitOver
    from kdgat.training.ranks.group import Ranks as Ranks
    from kdgat.training.ranks.group import Seat as Seat
    from kdgat.training.ranks.group import is_seated as is_seated
    from kdgat.training.ranks.group import seat_at as seat_at
    from kdgat.training.ranks.processes import num_ranks as num_ranks
    from kdgat.training.ranks.processes import open_ranks as open_ranks

__all__, __getattr__, __dir__ = lazy_names(__name__)
