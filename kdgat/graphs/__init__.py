"""Many small graphs as long arrays: a store on HDF5, mini-batches gathered from it, and their plan.

In: columns of graphs, whatever a family keeps in them. Out: batches as tensors, without an object per graph. Read
`columns.py` first, then `store.py`, `batches.py` and `plans.py` (pure functions of seed and epoch).
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.graphs.batches import OnHost as OnHost
    from kdgat.graphs.batches import TensorColumns as TensorColumns
    from kdgat.graphs.batches import group_sizes as group_sizes
    from kdgat.graphs.batches import places_of as places_of
    from kdgat.graphs.columns import GraphColumns as GraphColumns
    from kdgat.graphs.columns import pointers as pointers
    from kdgat.graphs.placement import ColumnStore as ColumnStore
    from kdgat.graphs.placement import Placed as Placed
    from kdgat.graphs.placement import place_columns as place_columns
    from kdgat.graphs.schema import CORE as CORE
    from kdgat.graphs.schema import EDGE_ATTR as EDGE_ATTR
    from kdgat.graphs.schema import EDGE_INDEX as EDGE_INDEX
    from kdgat.graphs.schema import Column as Column
    from kdgat.graphs.schema import Schema as Schema
    from kdgat.graphs.store import GraphStore as GraphStore
    from kdgat.graphs.store import write_store as write_store

__all__, __getattr__, __dir__ = lazy_names(__name__)
