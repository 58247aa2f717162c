"""Train graph neural networks on a cluster that kills every job at its walltime.

The map: what each package is, and what it may import (always downwards; `make lint` holds it). The `__init__` of a
package is its face: the names that others use; nothing is loaded before it is asked for. That of all, with the commands
as calls for notebooks, is this file's; it comes from kdgat/api.py.

    package      kind      what it is                                                     may import
    base         base      configuration, files, hashes, errors, compiled kernels         nothing of kdgat
    assignment   library   a cost matrix to the cheapest matching and its proof           base
    graphs       library   many small graphs as arrays in one file, and batches of them   base
    canbus       library   CAN logs and buses to messages, windows, graphs; attacks       base, graphs (without torch)
    stage        engine    one attempt at a stage: spec, run directory, outcome           base
    container    engine    Apptainer images: locks, build, agreement with this code       base, stage
    cluster      engine    sites, jobs, and what follows when an attempt has ended        container and its imports
    registry     engine    trained models, and which of them is in service                stage and its imports
    training     engine    fits that resume bit for bit: checkpoints, deadline, ranks     graphs, cluster and theirs
    run          engine    stages of any family: configuration, plan, results             training and its imports
    report       engine    pages of results, with figures                                 run and its imports
    family       engine    what a family is: its protocol, registry, sweep, summary       report and its imports
    can          family    intrusion detection on CAN buses                               all above but lap, trees
    lap          family    learned warm starts of linear assignment                       all above but can, trees
    trees        family    self-supervised learning on geometric trees                    all above but can, lap
    experiment   family    a model of one's own, from one file                            all above but can, lap, trees
    gpu          front     what a GPU computes of all families, and how fast              families and theirs
    (flows)      front     the runs under Prefect and Dask, beside this package           all above
    cli          front     the commands                                                   all above

Where is ...?

    whether a killed job is tried again      kdgat/cluster/decision.py: decide
    a candump file to graphs of windows      kdgat/canbus: read_recording, windows_to_graphs
    what a family of one's own provides      kdgat/family/protocol.py: Family (an example: tests/toy)
    a whole run on one page                  kdgat/run/local.py: run_locally
    what `import kdgat` gives                kdgat/api.py: plan, train, evaluate, load_run, load_model and others
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.api import SavedRun as SavedRun
    from kdgat.api import evaluate as evaluate
    from kdgat.api import list_runs as list_runs
    from kdgat.api import load_model as load_model
    from kdgat.api import load_run as load_run
    from kdgat.api import plan as plan
    from kdgat.api import train as train
    from kdgat.base.errors import UserError as UserError

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(__name__)
