"""Tasks whose body runs on a node while Prefect's engine stays here: a node needs neither Prefect nor its API.

A task run of prefect-dask lives in the worker, with its engine, its settings and its way to the API; when the worker
dies, its state stays "Running" for ever (PrefectHQ/prefect#21638). Here the engine outlives the worker and says so.
"""

import functools
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

import distributed
from prefect import Task
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Crashed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect_dask import DaskTaskRunner

WORKER_LOST = "WorkerLost"


class NodeTaskRunner(DaskTaskRunner):
    """Run the functions of tasks on Dask workers, and everything else of them in threads of this process.

    The function is sent by its name: it must be importable on the node, undecorated (`part = task(make_part)`).
    """

    def __init__(self, *args: Any, max_waiting: int = 64, **kwargs: Any) -> None:
        """Take what DaskTaskRunner takes; `max_waiting` tasks wait for a worker side by side, others queue."""
        super().__init__(*args, **kwargs)
        self.max_waiting = max_waiting
        self._engines: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=max_waiting)
        self._on_nodes: set[distributed.Future] = set()

    def duplicate(self) -> "NodeTaskRunner":
        """Return a runner of the same settings, not started."""
        return type(self)(
            address=self.address,
            cluster_class=self.cluster_class,
            cluster_kwargs=self.cluster_kwargs,
            adapt_kwargs=self.adapt_kwargs,
            client_kwargs=self.client_kwargs,
            max_waiting=self.max_waiting,
        )

    def submit(
        self,
        task: "Task[Any, Any]",
        parameters: dict[str, Any],
        wait_for: Iterable[Any] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectConcurrentFuture[Any]:
        """Start a task run; one whose worker is lost as often as the scheduler allows ends as crashed."""
        client, body = self.client, task.fn

        @functools.wraps(body)  # Prefect reads the names of the parameters through it
        def on_node(*args: Any, **kwargs: Any) -> Any:
            future = client.submit(body, *args, pure=False, **kwargs)
            self._on_nodes.add(future)
            try:
                return future.result()
            except (distributed.KilledWorker, CancelledError) as error:
                return Crashed(name=WORKER_LOST, message=str(error))
            finally:
                self._on_nodes.discard(future)
                future.release()  # or a lost worker has finished ones computed again (PrefectHQ/prefect#15442)

        engine = task.with_options()
        engine.fn = on_node
        return self._engines.submit(engine, parameters, wait_for, dependencies)

    def cancel_all(self) -> None:
        """Let no task begin any more, and forget what runs on the nodes: its task runs end as crashed."""
        self._engines.cancel_all()
        self.client.cancel(list(self._on_nodes))

    def __enter__(self) -> "NodeTaskRunner":
        """Open the cluster, its client and the threads."""
        super().__enter__()
        self._engines.__enter__()
        _ = self.client  # here, once: the property makes it, and is not thread-safe
        return self

    def __exit__(self, *error: Any) -> None:
        """Wait for the tasks, and let the workers leave by themselves before their jobs are cancelled."""
        try:
            self._engines.__exit__(*error)
            # By address: Cluster.close names them as the scheduler does not know them, which does nothing.
            addresses = list(self.client.scheduler_info(n_workers=-1)["workers"])
            self.client.retire_workers(addresses, close_workers=True)
        finally:
            super().__exit__(*error)
