import signal
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.cluster import EndKind, Resources, Site, decide
from kdgat.cluster.decision import (
    LONGEST_DELAY_S,
    LONGEST_OUTAGE_DELAY_S,
    MAX_ENVIRONMENT,
    MAX_FRUITLESS_ATTEMPTS,
    MAX_LOST,
    Decision,
    History,
    Retry,
    Stop,
    Wait,
)
from kdgat.cluster.ending import AttemptEnd
from kdgat.stage import FailureKind, Finished
from tests.cluster.attempts import CHECKPOINT, ended, failed, limited, refused_to_train

ASKED = Resources(walltime_s=3600, memory_mib=4096, cores=2, gpus=1, gpu_type="v100")
LIMITS = limited(14_400, 8192, bigger_gpu_types=("a100", "h100"))
NO_LIMITS = limited()
ALL_NODES = frozenset({"n1", "n2", "n3"})


def asked(**changes: Any) -> Resources:
    return ASKED.model_copy(update=changes)


@dataclass(frozen=True)
class Case:
    """One row: what happened, and what shall follow."""

    name: str
    end: AttemptEnd
    follows: Decision  # its reason: words that must stand in the sentence, separated by " ... "
    before: tuple[AttemptEnd, ...] = ()
    resources: Resources | None = ASKED
    excluded: frozenset[str] = frozenset()
    site: Site = LIMITS
    unescalated: Resources | None = None
    refused: Resources | None = None

    @property
    def history(self) -> History:
        return History(self.resources, self.before, self.excluded, self.unescalated, self.refused)


TIMEOUT, LOST = ended(EndKind.TIMEOUT), ended(EndKind.JOB_LOST)
PAUSED, NOT_STARTED = ended(EndKind.PAUSED, progress=True), ended(EndKind.NOT_STARTED)
PREEMPTED, UNREACHABLE = ended(EndKind.PREEMPTED), ended(EndKind.UNREACHABLE)
IMAGE_REPLACED = ended(
    EndKind.NOT_STARTED,
    message="FAILED before its worker reported; image /a.sif changed since submission: size and time",
)
REFUSED = ended(EndKind.REFUSED, message="invalid partition specified: nosuch")
PENDING = ended(EndKind.STILL_PENDING, message="job 7 has been PENDING Priority for 3600 s")
OUT_OF_MEMORY = ended(EndKind.HOST_OOM)
ENVIRONMENT = failed(FailureKind.ENVIRONMENT, message="ENVIRONMENT: [Errno 116] Stale file handle: 'x'")
NO_KERNELS_TEXT = "torch 2.13.0 has no kernels for Tesla V100-SXM2-16GB (capability 7.0; it has sm_75, sm_80)"
OLD_DRIVER_TEXT = (
    "the job was given a GPU and torch sees none: The NVIDIA driver on your system is too old (found version 12020)."
)
CRASHED = ended(EndKind.PROCESS_KILLED, signal=signal.SIGSEGV)
KILLED = ended(EndKind.PROCESS_KILLED, signal=signal.SIGKILL)
CANNOT_START = ended(EndKind.CANNOT_START, node="", message="job 7 would wait for ever: PENDING MaxMemPerLimit")
DEFERRED = ended(EndKind.DEFERRED, job_id="", node="", message="QOSMaxSubmitJobPerUserLimit")
MORE_MEMORY = asked(memory_mib=6144)
N1 = frozenset({"n1"})

CASES = [
    Case("finished", ended(EndKind.FINISHED, outcome=Finished()), Stop("finished")),
    Case("left alone", ended(EndKind.DETACHED, message="job 7 goes on"), Stop("job 7 goes on; the same command")),
    # Time
    Case("paused with a checkpoint", PAUSED, Retry(f"again from {CHECKPOINT}", ASKED)),
    Case("paused for the hundredth time, always with progress", PAUSED, Retry("again", ASKED), before=(PAUSED,) * 99),
    Case("timeout after a checkpoint", replace(TIMEOUT, checkpoint=CHECKPOINT, made_progress=True), Retry("", ASKED)),
    Case("timeout without a checkpoint, once", TIMEOUT, Retry("again from the start of the stage", ASKED)),
    Case(
        "timeout without a checkpoint, twice",
        TIMEOUT,
        Retry("walltime of 01:00:00 ... no new checkpoint in 2 attempts ... 02:00:00", asked(walltime_s=7200)),
        before=(TIMEOUT,),
    ),
    Case(
        "timeout without a checkpoint, twice: the longer walltime is held to the site's limit",
        TIMEOUT,
        Retry("03:00:00 ... 04:00:00", asked(walltime_s=14_400)),
        before=(TIMEOUT,),
        resources=asked(walltime_s=10_800),
    ),
    Case(
        "timeout without a checkpoint, twice, at the site's limit",
        TIMEOUT,
        Stop("walltime of 04:00:00 is too short ... allows 04:00:00 at most ... 2 attempts ... what was seen"),
        before=(TIMEOUT,),
        resources=asked(walltime_s=14_400),
    ),
    Case(
        "timeout without a checkpoint, three times",
        TIMEOUT,
        Stop("no progress: 3 attempts in a row left no new checkpoint ... what was seen"),
        before=(TIMEOUT, TIMEOUT),
        resources=asked(walltime_s=7200),
    ),
    Case("timeout without a checkpoint, after progress", TIMEOUT, Retry("again", ASKED), before=(TIMEOUT, PAUSED)),
    Case(
        "stage refused its walltime",
        refused_to_train(4000.4),
        Retry(
            "walltime of 01:00:00 ... needs more than 4000 s to save and do one step ... 02:13:20",
            asked(walltime_s=8000),
        ),
    ),
    Case(
        "stage refused its walltime, twice it is beyond the site's limit",
        refused_to_train(10_000),
        Retry("10000 s ... 04:00:00", asked(walltime_s=14_400)),
    ),
    Case(
        "stage refused its walltime, and the site grants less than it needs",
        refused_to_train(20_000),
        Stop("walltime of 01:00:00 is too short ... allows 04:00:00 at most ... needs more than 20000 s"),
    ),
    Case(
        "stage refused its walltime, at the site's limit",
        refused_to_train(20_000),
        Stop("04:00:00 ... 04:00:00 at most ... 20000 s ... the job is too short"),
        resources=asked(walltime_s=14_400),
    ),
    Case(
        "stage refused what was left of a walltime that is long enough",
        refused_to_train(1800),
        Retry("again from the start of the stage", ASKED),
    ),
    # Lost work
    Case("training process killed", KILLED, Retry("again from the start of the stage", ASKED)),
    Case("job lost", replace(LOST, checkpoint=CHECKPOINT), Retry(f"again from {CHECKPOINT}", ASKED)),
    Case("job lost, second time", LOST, Retry("stage in 5 s", ASKED, delay_s=5.0), before=(LOST,)),
    Case("job lost, third time", LOST, Retry("stage in 10 s", ASKED, delay_s=10.0), before=(LOST, LOST)),
    Case(
        "three power cuts before the first checkpoint",
        ended(EndKind.NODE_FAILURE),
        Retry("stage in 10 s, without node n1", ASKED, N1, delay_s=10.0),
        before=(ended(EndKind.NODE_FAILURE), ended(EndKind.NODE_FAILURE)),
    ),
    Case("job lost, with a new checkpoint each time", replace(LOST, made_progress=True), Retry("", ASKED)),
    Case(
        "attempts ended from outside, ten times, whatever came between",
        LOST,
        Stop("10 attempts since the last checkpoint were ended from outside ... what was seen"),
        before=(LOST, KILLED, TIMEOUT, ended(EndKind.NODE_FAILURE), ENVIRONMENT, *(ended(EndKind.FROZEN),) * 6),
    ),
    Case(
        "different faults in a row, none of them with a checkpoint, and what is no fault does not count",
        LOST,
        Retry("again", ASKED, delay_s=10.0),
        before=(ended(EndKind.NODE_FAILURE), LOST, TIMEOUT),
    ),
    Case("the stage crashed", CRASHED, Retry("again", ASKED)),
    Case(
        "the stage crashed, after errors that a person has mended since",
        CRASHED,
        Retry("again", ASKED),
        before=(failed(FailureKind.ERROR), failed(FailureKind.BAD_INPUT), failed(FailureKind.NUMERIC)),
    ),
    Case(
        "the stage crashed for the third time",
        CRASHED,
        Stop("no progress: 3 attempts"),
        before=(CRASHED, LOST, ENVIRONMENT, TIMEOUT),
    ),
    Case(
        "a memory map whose file is out of reach",
        ended(EndKind.PROCESS_KILLED, signal=signal.SIGBUS),
        Retry("without node n1", ASKED, N1),
    ),
    # What is around the stage
    Case(
        "a stale file handle",
        ENVIRONMENT,
        Retry("again from the start of the stage in 5 s, without node n1", ASKED, N1, delay_s=5.0),
    ),
    Case(
        "something is broken around the stage for the third time",
        ENVIRONMENT,
        Retry("in 20 s, without node n1", ASKED, N1 | {"n2"}, delay_s=20.0),
        before=(ENVIRONMENT, LOST, TIMEOUT, ENVIRONMENT),
        excluded=frozenset({"n2"}),
    ),
    Case(
        "something is broken around the stage for the tenth time",
        ENVIRONMENT,
        Stop("10 attempts since the last checkpoint found something broken ... fix it ... Stale file handle"),
        before=(*(ENVIRONMENT,) * 5, LOST, *(ENVIRONMENT,) * 4),
    ),
    Case(
        "something is broken after a new checkpoint",
        replace(ENVIRONMENT, made_progress=True, checkpoint=CHECKPOINT),
        Retry(f"again from {CHECKPOINT} in 5 s, without node n1", ASKED, N1, delay_s=5.0),
        before=(ENVIRONMENT,) * 9,
    ),
    Case(
        "a quota is exceeded, on whatever node",
        failed(FailureKind.ENVIRONMENT, message="ENVIRONMENT: [Errno 122] Disk quota exceeded: 'x'"),
        Retry("in 5 s", ASKED, delay_s=5.0),
    ),
    Case(
        "torch has no kernels for the card, and every node has such cards",
        failed(FailureKind.ENVIRONMENT, message=f"ENVIRONMENT: {NO_KERNELS_TEXT}"),
        Stop("every v100 of the site is alike: use the image for CUDA 12 (kdgat image build gpu) ... no kernels for"),
    ),
    Case(
        "the driver is too old, and every node has such cards",
        failed(FailureKind.ENVIRONMENT, message=f"ENVIRONMENT: {OLD_DRIVER_TEXT}"),
        Stop("every v100 of the site is alike ... or another gpu_type; ... driver on your system is too old"),
        before=(LOST,),
    ),
    Case(
        "the driver is too old on one of the nodes: the stage trained on another",
        failed(FailureKind.ENVIRONMENT, message=f"ENVIRONMENT: {OLD_DRIVER_TEXT}"),
        Retry("in 5 s, without node n1", ASKED, N1, delay_s=5.0),
        before=(PAUSED,),
    ),
    Case(
        "torch has no kernels for the card, and another node may have another card",
        failed(FailureKind.ENVIRONMENT, message=f"ENVIRONMENT: {NO_KERNELS_TEXT}"),
        Retry("in 5 s, without node n1", asked(gpu_type=None), N1, delay_s=5.0),
        resources=asked(gpu_type=None),
    ),
    Case(
        "the run directory is locked from a node that is dead",
        failed(FailureKind.ENVIRONMENT, message="exit status 69: error: DIR is in use by pid 5 on n2: wait"),
        Retry("in 10 s", ASKED, delay_s=10.0),
        before=(ended(EndKind.NODE_FAILURE), ENVIRONMENT),
    ),
    Case(
        "a quota is exceeded on this machine",
        failed(FailureKind.ENVIRONMENT, node=""),
        Retry("again from the start of the stage in 5 s", None, delay_s=5.0),
        resources=None,
    ),
    Case(
        "node failed",
        ended(EndKind.NODE_FAILURE, progress=True),
        Retry(f"again from {CHECKPOINT}, without node n1", ASKED, frozenset({"n1", "n2"})),
        excluded=frozenset({"n2"}),
    ),
    Case("worker frozen", ended(EndKind.FROZEN), Retry("without node n1", ASKED, frozenset({"n1"}))),
    Case(
        "frozen, and it said before what it waited for",
        ended(EndKind.FROZEN, outcome=ENVIRONMENT.outcome),
        Retry("again from the start of the stage, without node n1", ASKED, N1),
    ),
    Case("frozen on a node that is not known", ended(EndKind.FROZEN, node=""), Retry("again", ASKED)),
    Case(
        "all nodes are excluded",
        REFUSED,
        Retry("no node is left without n1, n2, n3: trying all of them again", ASKED),
        before=(ended(EndKind.NODE_FAILURE, progress=True),) * 3,
        excluded=ALL_NODES,
    ),
    Case(
        "preempted",
        PREEMPTED,
        Retry("higher priority ... not counted", ASKED, frozenset({"n2"})),
        excluded=frozenset({"n2"}),
    ),
    Case(
        "preempted again and again, at once",
        PREEMPTED,
        Retry("higher priority ... again in 20 s, not counted", ASKED, delay_s=20.0),
        before=(PREEMPTED, LOST, PREEMPTED, PREEMPTED),
    ),
    Case(
        "preempted after it saved",
        replace(PREEMPTED, made_progress=True),
        Retry("again, not counted", ASKED),
        before=(PREEMPTED, PREEMPTED),
    ),
    Case(
        "preemptions do not count as attempts without progress",
        CRASHED,
        Retry("again", ASKED),
        before=(CRASHED, PREEMPTED, PREEMPTED, PREEMPTED),
    ),
    Case(
        "preemptions do not hide that nothing is gained",
        CRASHED,
        Stop("no progress: 3 attempts"),
        before=(CRASHED, PREEMPTED, CRASHED, PREEMPTED),
    ),
    Case(
        "a preempted attempt that saved is progress",
        CRASHED,
        Retry("again", ASKED),
        before=(CRASHED, CRASHED, replace(PREEMPTED, made_progress=True)),
    ),
    Case(
        "a job that was refused for its excluded nodes is no attempt",
        TIMEOUT,
        Retry("again", ASKED),
        before=(ended(EndKind.NODE_FAILURE), REFUSED),
    ),
    # More than Slurm grants
    Case(
        "a job that can never start, as it was asked for by a person",
        CANNOT_START,
        Stop("Slurm refuses the job: job 7 would wait for ever: PENDING MaxMemPerLimit"),
        before=(OUT_OF_MEMORY,),
    ),
    Case(
        "a job that can never start since its memory grew",
        CANNOT_START,
        Retry("Slurm grants no job so much: again with 01:00:00, 4G ... MaxMemPerLimit", ASKED),
        before=(OUT_OF_MEMORY,),
        resources=MORE_MEMORY,
        unescalated=ASKED,
    ),
    Case(
        "a job is refused since its walltime grew",
        REFUSED,
        Retry("Slurm grants no job so much: again with 01:00:00, 4G", ASKED),
        resources=asked(walltime_s=7200),
        unescalated=ASKED,
    ),
    Case(
        "a job that can never start on the nodes that are left",
        CANNOT_START,
        Retry("no node is left without n2", MORE_MEMORY),
        resources=MORE_MEMORY,
        unescalated=ASKED,
        excluded=frozenset({"n2"}),
    ),
    Case(
        "out of memory where Slurm grants no more",
        OUT_OF_MEMORY,
        Stop("4G are not enough and the site allows no more"),
        refused=MORE_MEMORY,
        site=NO_LIMITS,
    ),
    Case(
        "out of memory where Slurm granted no longer walltime",
        OUT_OF_MEMORY,
        Retry("6G", MORE_MEMORY),
        refused=asked(walltime_s=7200),
    ),
    Case(
        "out of time where Slurm grants no more",
        TIMEOUT,
        Stop("walltime of 01:00:00 is too short ... allows 01:00:00 at most"),
        before=(TIMEOUT,),
        refused=asked(walltime_s=7200),
    ),
    Case(
        "the GPU's memory is too small, and Slurm has none of the next kind",
        failed(FailureKind.CUDA_OOM),
        Retry("again on h100", asked(gpu_type="h100")),
        refused=asked(gpu_type="a100"),
    ),
    # Memory
    Case("out of memory", OUT_OF_MEMORY, Retry("4G were not enough: again with 6G", asked(memory_mib=6144))),
    Case(
        "out of memory, held to the site's limit",
        OUT_OF_MEMORY,
        Retry("6G were not enough: again with 8G", asked(memory_mib=8192)),
        resources=asked(memory_mib=6144),
    ),
    Case(
        "out of memory at the site's limit",
        OUT_OF_MEMORY,
        Stop("8G are not enough ... training.batch_size ... limits.memory"),
        resources=asked(memory_mib=8192),
    ),
    Case("out of memory without a limit", OUT_OF_MEMORY, Retry("6G", asked(memory_mib=6144)), site=NO_LIMITS),
    Case("MemoryError of the stage", failed(FailureKind.HOST_OOM), Retry("4G ... 6G", asked(memory_mib=6144))),
    Case(
        "the excluded nodes stay so with more memory",
        OUT_OF_MEMORY,
        Retry("6G", asked(memory_mib=6144), frozenset({"n3"})),
        excluded=frozenset({"n3"}),
    ),
    Case("the GPU's memory is too small", failed(FailureKind.CUDA_OOM), Retry("again on a100", asked(gpu_type="a100"))),
    Case(
        "the bigger GPU's memory is too small",
        failed(FailureKind.CUDA_OOM),
        Retry("again on h100", asked(gpu_type="h100")),
        resources=asked(gpu_type="a100"),
    ),
    Case(
        "the biggest GPU's memory is too small",
        failed(FailureKind.CUDA_OOM),
        Stop("smallest part of a batch ... no bigger"),
        resources=asked(gpu_type="h100"),
    ),
    Case("the site names no bigger GPU", failed(FailureKind.CUDA_OOM), Stop("no bigger"), site=NO_LIMITS),
    # The stage says why
    Case("a bad input", failed(FailureKind.BAD_INPUT), Stop("trying again would end the same way: BAD_INPUT")),
    Case("numbers that are not finite", failed(FailureKind.NUMERIC), Stop("NUMERIC")),
    Case("an error in the code", failed(FailureKind.ERROR), Stop("ERROR")),
    # Jobs that never work
    Case(
        "an import error on the worker",
        ended(EndKind.NOT_STARTED, message="FAILED; ModuleNotFoundError: No module named 'kdgat'"),
        Stop("in this environment, on any node ... No module named 'kdgat'"),
    ),
    Case(
        "no such python on one node, which may lack a mount",
        ended(EndKind.NOT_STARTED, message="/opt/python: No such file or directory"),
        Retry("again from the start of the stage in 5 s, without node n1", ASKED, N1, delay_s=5.0),
    ),
    Case(
        "a library that this node lacks",
        ended(EndKind.NOT_STARTED, message="ImportError: libcuda.so.1: cannot open shared object file"),
        Retry("without node n1", ASKED, N1, delay_s=5.0),
    ),
    Case(
        "the image was replaced while the job waited: no node's fault",
        IMAGE_REPLACED,
        Retry("image was replaced ... again in 30 s", ASKED, delay_s=30.0),
        before=(NOT_STARTED, IMAGE_REPLACED, IMAGE_REPLACED, PAUSED, IMAGE_REPLACED),
    ),
    Case(
        "the image was replaced under three jobs in a row",
        IMAGE_REPLACED,
        Stop("while 3 jobs in a row waited ... another name ... changed since submission"),
        before=(IMAGE_REPLACED, PREEMPTED, IMAGE_REPLACED),
    ),
    Case(
        "a job did not start after the image was replaced",
        NOT_STARTED,
        Retry("in 5 s, without node n1", ASKED, N1, delay_s=5.0),
        before=(NOT_STARTED, IMAGE_REPLACED),
    ),
    Case("a job did not start", NOT_STARTED, Retry("in 5 s, without node n1", ASKED, N1, delay_s=5.0)),
    Case("a job did not start nobody knows where", replace(NOT_STARTED, node=""), Retry("in 5 s", ASKED, delay_s=5.0)),
    Case(
        "three jobs in a row did not start, while a filesystem was away",
        NOT_STARTED,
        Retry("in 20 s", ASKED, N1, delay_s=20.0),
        before=(NOT_STARTED,) * 2,
    ),
    Case(
        "four jobs in a row did not start",
        NOT_STARTED,
        Stop("4 jobs in a row ended before their worker reported ... what was seen"),
        before=(NOT_STARTED,) * 3,
    ),
    Case(
        "four jobs in a row did not start, though Slurm was away and the nodes ran out in between",
        NOT_STARTED,
        Stop("4 jobs in a row"),
        before=(NOT_STARTED, UNREACHABLE, NOT_STARTED, REFUSED, DEFERRED, NOT_STARTED),
    ),
    Case(
        "a job did not start, after one that did",
        NOT_STARTED,
        Retry("in 5 s", ASKED, N1, delay_s=5.0),
        before=(NOT_STARTED, LOST),
    ),
    Case("refused by sbatch", REFUSED, Stop("Slurm refuses the job: invalid partition specified: nosuch")),
    # People and the queue
    Case(
        "cancelled by somebody",
        ended(EndKind.CANCELLED, progress=True),
        Stop(f"somebody cancelled job 7 ... the same command goes on from {CHECKPOINT}"),
    ),
    Case("cancelled before a checkpoint", ended(EndKind.CANCELLED), Stop("goes on from the start of the stage")),
    Case("pending for long", PENDING, Wait("job 7 has been PENDING Priority for 3600 s; waiting on")),
    Case(
        "pending for long where the site says stop",
        PENDING,
        Stop("3600 s ... on_start_timeout: stop"),
        site=LIMITS.model_copy(update={"on_start_timeout": "stop"}),
    ),
    Case("Slurm does not answer", UNREACHABLE, Retry("asking it again in 5 s", ASKED, delay_s=5.0)),
    Case(
        "a submit limit is reached",
        DEFERRED,
        Retry("Slurm takes no job now: asking it again in 10 s", ASKED, delay_s=10.0),
        before=(UNREACHABLE,),
    ),
    Case(
        "a submit limit is reached for longer than the site waits",
        DEFERRED,
        Stop("asked 6 times in 00:02:30 ... takes no job now ... goes on when it does: QOSMaxSubmitJobPerUserLimit"),
        before=(LOST, *(DEFERRED,) * 5),
        site=LIMITS.model_copy(update={"submit_timeout_s": 150.0}),
    ),
    Case(
        "Slurm does not answer for the third time",
        UNREACHABLE,
        Retry("Slurm does not answer: asking it again in 20 s", ASKED, frozenset({"n2"}), delay_s=20.0),
        before=(LOST, UNREACHABLE, UNREACHABLE),
        excluded=frozenset({"n2"}),
    ),
    Case(
        "Slurm answered in between",
        UNREACHABLE,
        Retry("asking it again in 5 s", ASKED, delay_s=5.0),
        before=(UNREACHABLE, UNREACHABLE, LOST),
    ),
    # A process on this machine, without a job around it
    Case("process killed on this machine", replace(KILLED, node=""), Retry("again", None), resources=None),
    Case(
        "process killed on this machine for the tenth time",
        replace(KILLED, node=""),
        Stop("10 attempts since the last checkpoint were ended from outside"),
        before=(replace(KILLED, node=""),) * 9,
        resources=None,
    ),
    Case(
        "process crashed on this machine for the third time",
        replace(CRASHED, node=""),
        Stop("no progress: 3 attempts"),
        before=(replace(CRASHED, node=""),) * 2,
        resources=None,
    ),
    Case("process paused on this machine", PAUSED, Retry(f"again from {CHECKPOINT}", None), resources=None),
    Case(
        "process paused on this machine without a checkpoint",
        replace(PAUSED, made_progress=False),
        Retry("again", None),
        before=(replace(PAUSED, made_progress=False),),
        resources=None,
    ),
    Case("walltime refused where there is none", refused_to_train(100), Retry("again", None), resources=None),
    Case(
        "this machine's memory is too small",
        failed(FailureKind.HOST_OOM),
        Stop("this machine ... batch_size"),
        resources=None,
    ),
    Case("this machine's GPU is too small", failed(FailureKind.CUDA_OOM), Stop("no bigger"), resources=None),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_what_follows_an_end(case: Case) -> None:
    decision = decide(case.end, case.history, case.site)
    sentence = decision.reason
    assert replace(decision, reason="") == replace(case.follows, reason=""), sentence
    place = 0
    for words in case.follows.reason.split(" ... "):
        place = sentence.find(words, place)
        assert place >= 0, f"{words!r} is not in {sentence!r}, or not in this order"
    assert "None" not in sentence
    assert len(sentence) < 300


def test_every_kind_of_end_stands_in_the_table() -> None:
    assert {case.end.kind for case in CASES} == set(EndKind)
    assert {case.end.failure for case in CASES} == {None, *FailureKind}


def test_a_controller_that_is_gone_is_asked_ever_less_often_and_given_up_in_the_end() -> None:
    ends: tuple[AttemptEnd, ...] = ()
    delays = []
    while isinstance(decision := decide(UNREACHABLE, History(ASKED, ends), LIMITS), Retry):
        delays.append(decision.delay_s)
        ends = (*ends, UNREACHABLE)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S
    assert 0 <= sum(delays) - LIMITS.submit_timeout_s < LONGEST_DELAY_S
    assert LIMITS.submit_timeout_s == Site(name="here").submit_timeout_s == 24 * 3600


@pytest.mark.parametrize(
    ("end", "most", "longest_s"),
    [(LOST, MAX_LOST, LONGEST_DELAY_S), (ENVIRONMENT, MAX_ENVIRONMENT, LONGEST_OUTAGE_DELAY_S)],
)
def test_an_outage_is_waited_out_and_a_fault_that_stays_comes_to_an_end(
    end: AttemptEnd, most: int, longest_s: float
) -> None:
    ends: tuple[AttemptEnd, ...] = ()
    delays = []
    while isinstance(decision := decide(end, History(ASKED, ends), LIMITS), Retry):
        delays.append(decision.delay_s)
        ends = (*ends, end)
    assert len(delays) == most - 1
    assert delays == sorted(delays)
    assert delays[-1] <= longest_s
    assert sum(delays) > 900


# Anything that may happen to an attempt, in a random order. `STILL_PENDING` and `DETACHED` are no end.
KINDS = st.sampled_from(
    [kind for kind in EndKind if kind not in (EndKind.STILL_PENDING, EndKind.DETACHED, EndKind.FAILED)]
)
NODES = st.sampled_from(["n1", "n2", "n3", ""])
ENDS = st.one_of(
    st.builds(ended, KINDS, node=NODES),
    st.builds(failed, st.sampled_from(list(FailureKind)), node=NODES),
    st.builds(refused_to_train, st.floats(1, 1e6), node=NODES),
)
ENDS_WITH_PROGRESS = st.builds(lambda end, progress: replace(end, made_progress=progress), ENDS, st.booleans())
RESOURCES = st.builds(
    Resources,
    walltime_s=st.integers(60, 7200),
    memory_mib=st.integers(100, 100_000),
    gpus=st.integers(0, 1),
    gpu_type=st.sampled_from(["v100", "a100", None]),
)
LIMITED = st.builds(
    limited,
    walltime_s=st.none() | st.integers(7200, 100_000),
    memory_mib=st.none() | st.integers(100_000, 1_000_000),
    bigger_gpu_types=st.sampled_from([(), ("a100",), ("v100", "a100", "h100")]),
    submit_timeout_s=st.sampled_from([1.0, 300.0, 3600.0]),
)


@settings(max_examples=200, deadline=None)
@given(ends=st.lists(ENDS_WITH_PROGRESS, min_size=1, max_size=30), resources=RESOURCES, site=LIMITED)
def test_no_job_asks_for_more_than_the_site_grants(ends: list[AttemptEnd], resources: Resources, site: Site) -> None:
    history = History(resources)
    for end in ends:
        decision = decide(end, history, site)
        assert decision.reason
        if not isinstance(decision, Retry):
            return
        granted, before = decision.resources, history.resources
        assert granted is not None
        assert before is not None
        assert granted.walltime_s <= (site.limits.walltime_s or granted.walltime_s)
        assert granted.memory_mib <= (site.limits.memory_mib or granted.memory_mib)
        assert granted.gpu_type in (before.gpu_type, *site.bigger_gpu_types)
        assert granted.walltime_s >= before.walltime_s
        assert granted.memory_mib >= before.memory_mib
        assert (granted.cores, granted.gpus) == (before.cores, before.gpus)
        history = History(granted, (*history.ends, end), decision.excluded_nodes)


# Each kind of end is bounded, and those of a pattern take turns; with the controller away for up to twenty times.
LONGEST = (MAX_FRUITLESS_ATTEMPTS + MAX_LOST + MAX_ENVIRONMENT + 20) * 6


@settings(max_examples=200, deadline=None)
@given(pattern=st.lists(ENDS, min_size=1, max_size=6), resources=st.none() | RESOURCES, site=LIMITED)
def test_attempts_without_progress_come_to_an_end_whatever_befalls_them(
    pattern: list[AttemptEnd], resources: Resources | None, site: Site
) -> None:
    pattern = [end for end in pattern if end.kind is not EndKind.PREEMPTED] or [LOST]
    history = History(resources)
    for number in range(LONGEST):
        end = pattern[number % len(pattern)]
        decision = decide(end, history, site)
        if isinstance(decision, Stop):
            return
        assert isinstance(decision, Retry)
        history = History(decision.resources, (*history.ends, end), decision.excluded_nodes)
    pytest.fail(f"{LONGEST} attempts and no end")


def test_preemptions_may_go_on_for_ever_at_the_pace_of_the_longest_delay() -> None:
    decision = decide(PREEMPTED, History(ASKED, (PREEMPTED,) * 5000), LIMITS)
    assert isinstance(decision, Retry)
    assert decision.delay_s == LONGEST_DELAY_S
