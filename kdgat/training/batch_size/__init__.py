"""How large a batch is: as configured, or as memory allows by a search; and cut into parts where it is short of memory.

In: a source that plans by a limit, a module, a budget of memory. Out: the limit of each batch, and its parts. Read
`limit.py` first, then `search.py` with `trial.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.training.batch_size.limit import BatchLimit as BatchLimit
    from kdgat.training.batch_size.limit import GraphSizes as GraphSizes
    from kdgat.training.batch_size.search import settle_batches as settle_batches
    from kdgat.training.batch_size.trial import StepStart as StepStart
    from kdgat.training.batch_size.trial import cut as cut
    from kdgat.training.batch_size.trial import double_parts as double_parts
    from kdgat.training.batch_size.trial import free_memory as free_memory
    from kdgat.training.batch_size.trial import reason_of as reason_of

__all__, __getattr__, __dir__ = lazy_names(__name__)
