"""What a cluster is asked for, what it did, and what follows from that; no scheduler library is imported here.

In: a site file, resource requests, and how an attempt ended. Out: job scripts, the state of jobs as Slurm tells it, and
a decision: again (with more memory, without that node), wait, or stop. Read `decision.py` first, a pure function with a
table of tests; then `site.py`, `ending.py` and `slurm.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.cluster.attempts import AttemptLedger as AttemptLedger
    from kdgat.cluster.attempts import AttemptRecord as AttemptRecord
    from kdgat.cluster.child import StopRequest as StopRequest
    from kdgat.cluster.decision import decide as decide
    from kdgat.cluster.ending import EndKind as EndKind
    from kdgat.cluster.forecast import Estimate as Estimate
    from kdgat.cluster.forecast import Expectation as Expectation
    from kdgat.cluster.resources import ResourceRequest as ResourceRequest
    from kdgat.cluster.resources import Resources as Resources
    from kdgat.cluster.resources import format_memory as format_memory
    from kdgat.cluster.resources import format_walltime as format_walltime
    from kdgat.cluster.site import LOCAL as LOCAL
    from kdgat.cluster.site import Site as Site
    from kdgat.cluster.site import SiteError as SiteError
    from kdgat.cluster.site import load_site as load_site
    from kdgat.cluster.slurm import Slurm as Slurm

__all__, __getattr__, __dir__ = lazy_names(__name__)
