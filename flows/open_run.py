"""A run that is open in this process: locked, with what asks it to stop, and with stages that have begun.

On this machine a command opens its run, and begins with what can start, while Prefect is imported and its server comes
up; the flow continues with it, and shows what has happened from the beginning on.
"""

import contextlib
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from flows.attempts import AttemptBody, AttemptContext, AttemptResult
from flows.execution import Execution, num_parallel_stages, num_ranks_of
from flows.signals import leave, stop_on_signals
from flows.stage_work import Log, StageEnd, bearing_faults, perform
from kdgat.cluster import AttemptRecord, ResourceRequest, Site, StopRequest
from kdgat.run import OutputDirectory, PlannedStage, Run
from kdgat.stage.owner import Owner

logger = logging.getLogger(__name__)

T = TypeVar("T")
Lock = Callable[[], AbstractContextManager[Owner]]
POLL_S: Final = 0.5


class _Channel(Generic[T]):
    """What a thread says while it works, kept until somebody listens, and at last its result."""

    def __init__(self) -> None:
        self._said: SimpleQueue[tuple[str, tuple[Any, ...]] | None] = SimpleQueue()
        self._result: Future[T] = Future()

    def sink(self, name: str) -> Callable[..., None]:
        """Return what keeps its arguments for the listener of this name."""
        return lambda *arguments: self._said.put((name, arguments))

    def work(self, action: Callable[[], T]) -> T:
        """Do the work, in the thread of the caller."""
        try:
            result = action()
            self._result.set_result(result)
        except BaseException as error:
            self._result.set_exception(error)
            raise
        finally:
            self._said.put(None)
        return result

    def listen(self, **listeners: Callable[..., object]) -> T:
        """Call the listeners with all that was said, until the work is done; return its result, or raise its error."""
        while (said := self._said.get()) is not None:
            name, arguments = said
            try:
                listeners[name](*arguments)
            except Exception as error:  # the work goes on, whoever shows it
                logger.warning("%s is not shown: %s", name, error)
        return self._result.result()


class BegunStage:
    """A stage in a thread of its own."""

    def __init__(self, planned: PlannedStage, execution: Execution, stop: StopRequest) -> None:
        self._channel: _Channel[StageEnd] = _Channel()
        self.planned, self._execution, self._stop = planned, execution, stop
        self.thread = threading.Thread(target=self._run, name=planned.name)
        self.thread.start()

    def follow(self, log: Log, context: AttemptContext) -> StageEnd:
        """Log and show everything from the beginning on, until the stage has ended; return how."""

        def show(record: AttemptRecord, said: "_Channel[AttemptResult]") -> None:
            context(record, lambda line, progress, state: said.listen(line=line, progress=progress, state=state))

        return self._channel.listen(log=log, attempt=show)

    def _run(self) -> None:
        with contextlib.suppress(BaseException):  # whoever follows gets it
            self._channel.work(
                lambda: perform(self.planned, self._execution, self._stop, self._channel.sink("log"), self._attempt)
            )

    def _attempt(self, record: AttemptRecord, body: AttemptBody) -> AttemptResult:
        said: _Channel[AttemptResult] = _Channel()
        self._channel.sink("attempt")(record, said)

        def set_state(name: str, message: str) -> None:
            self._execution.note(self.planned, message)
            said.sink("state")(name, message)

        return said.work(lambda: body(said.sink("line"), said.sink("progress"), set_state))


@dataclass
class OpenRun:
    """What it takes to walk a plan."""

    execution: Execution
    stop: StopRequest
    owner: Owner
    num_parallel: int
    started: float = field(default_factory=time.time)  # seconds since the epoch
    begun: dict[str, BegunStage] = field(default_factory=dict)  # before there was a flow, in the order of the plan
    signals: ExitStack = field(default_factory=ExitStack)  # what handles them before there is a flow
    _is_flow_there: threading.Event = field(default_factory=threading.Event)
    _walk: threading.Thread | None = None

    def is_at_work(self, name: str) -> bool:
        """Tell whether a stage that has begun before the flow still runs, whether or not it is shown."""
        return name in self.begun and self.begun[name].thread.is_alive()

    def startable(self) -> list[PlannedStage]:
        """Choose the stages that start now."""
        return self.execution.startable(self.num_parallel - self.execution.num_running())

    def require_wanted(self) -> None:
        """Raise KeyboardInterrupt where it was asked to stop."""
        if self.stop.is_set():
            raise KeyboardInterrupt(self.stop.reason)

    def leave_signals(self) -> None:
        """Handle no signals any more: a flow does so itself, inside of the handler that Prefect puts around it."""
        self.signals.close()
        self.require_wanted()

    def walk_ahead(self) -> None:
        """Begin stages as they can start, until a flow takes over."""
        self._walk = threading.Thread(target=self._begin_stages, name="stages ahead")
        self._walk.start()

    def take_over(self) -> None:
        """Leave it to the caller to start stages."""
        self._is_flow_there.set()
        if self._walk is not None:
            self._walk.join()

    def _begin_stages(self) -> None:
        while not (self._is_flow_there.is_set() or self.stop.is_set()):
            for planned in self.startable():
                try:
                    self.begun[planned.name] = BegunStage(planned, self.execution, self.stop)
                except RuntimeError as error:  # no more threads: a stage that counts as running would never end
                    self.execution.fail(planned, error)
            self.execution.wait_for_change(POLL_S)


_ahead: ContextVar[OpenRun | None] = ContextVar("ahead", default=None)


@contextmanager
def open_run(
    run: Run,
    output: OutputDirectory,
    site: Site,
    command_line: ResourceRequest,
    parallel_stages: int | None,
    pool: int = 0,
    *,
    tell: Callable[[str], object],
    held: Callable[[Lock], AbstractContextManager[Owner]] = lambda lock: lock(),
) -> Iterator[OpenRun]:
    """Lock the output directory of a run; arguments as of `execute`.

    Args:
        tell: gets what a filesystem makes it wait for.
        held: takes the lock.
    """
    stop = StopRequest()

    def begin(action: Callable[[], T]) -> T:
        return bearing_faults(action, stop, site, tell, output)

    with ExitStack() as stack:
        owner = begin(lambda: stack.enter_context(held(output.lock)))
        execution = stack.enter_context(closing(begin(lambda: Execution(run, output, site, command_line, pool))))
        num_ranks = max(map(num_ranks_of, run.plan), default=1)
        num_parallel = num_parallel_stages(run.num_threads, site, parallel_stages, len(execution.gpus), num_ranks)
        yield OpenRun(execution, stop, owner, num_parallel)


@contextmanager
def head_start(
    run: Run,
    output: OutputDirectory,
    site: Site,
    command_line: ResourceRequest,
    parallel_stages: int | None,
    pool: int,
) -> Iterator[None]:
    """Open a run of this machine and begin with what can start; the flow inside the context continues with it.

    Jobs of a cluster, and the pool, which has task runs of its own, wait for the flow.
    """
    if site.scheduler != "local" or pool:
        yield
        return
    tell = functools.partial(print, file=sys.stderr)
    with site.creating_files(), open_run(run, output, site, command_line, parallel_stages, tell=tell) as opened:
        opened.signals.enter_context(stop_on_signals(opened.stop, site))
        opened.walk_ahead()
        token = _ahead.set(opened)
        try:
            yield
        finally:
            _ahead.reset(token)
            opened.take_over()
            leave(opened.stop, site, "the end of its command")  # of no effect where all stages have ended
            for stage in opened.begun.values():
                stage.thread.join()
            opened.signals.close()


def opened_ahead(output: OutputDirectory) -> OpenRun | None:
    """Return the run of an output directory that this command has opened already."""
    opened = _ahead.get()
    return opened if opened is not None and opened.execution.output.path == output.path else None
