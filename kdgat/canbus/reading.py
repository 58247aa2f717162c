"""Recordings read, or brought into a dataset, by a process of its own, which a bad file may end and no more.

Started by itself (`python -m`): whatever a library does with a damaged file, take memory without end, find no end or
crash, is the end of that process alone, within limits of memory and processor time for each file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from kdgat.canbus.catalog import DatasetError
from kdgat.canbus.importing import NO_LABELS, import_recording
from kdgat.canbus.logs import read_recording
from kdgat.canbus.look import require_judgeable
from kdgat.canbus.messages import ReadLimits, RecordingError
from kdgat.canbus.readers.limits import limit_process, most_time

LEAST_S: Final = 300  # of processor time for a file of any size: the first one may have kernels compiled
_THREADS: Final = {"POLARS_MAX_THREADS": "4", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each takes memory
# Somebody has ended the process, and no file did.
_ASKED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True)
class ReadingRequest:
    """What shall be done with a file; without `folder` it is read only."""

    path: str
    scenario: str
    max_bad_fraction: float
    require_labels: bool
    name: str = ""
    folder: str = ""
    put_aside: str = ""

    def refusal(self) -> str:
        """Do it, and state why the file cannot be used; empty if it can."""
        path, limits = Path(self.path), ReadLimits(max_bad_fraction=self.max_bad_fraction)
        try:
            if self.folder:
                import_recording(
                    path,
                    Path(self.folder),
                    self.scenario,
                    name=self.name,
                    replace=True,
                    put_aside=Path(self.put_aside),
                    require_labels=self.require_labels,
                    limits=limits,
                )
                return ""
            messages = read_recording(path, scenario=self.scenario, limits=limits)
            require_judgeable(path, messages)
        except RecordingError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno:
                raise error.__cause__ from None  # a later night may read it: nothing to be noted of the file
            return error.problem
        except DatasetError as error:
            return str(error)
        return NO_LABELS if self.require_labels and not messages.labelled else ""


class Answer(NamedTuple):
    """Why a file cannot be used, and whether it has ended the process that read it."""

    refusal: str
    is_lethal: bool = False


class ReadingProcess:
    """A context with the process that reads one file after the other; it starts with the first, and after its end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, request: ReadingRequest) -> Answer:
        """Have a file read; OSError where it or its target is not within reach, or somebody ended the process."""
        num_bytes = Path(request.path).stat().st_size
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(request)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.close()
            raise
        if line.endswith("\n"):
            answer = json.loads(line)
            if "errno" in answer:
                raise OSError(answer["errno"], answer["text"], answer["file"])
            return Answer(answer["refusal"])
        status = process.wait()
        self.close()
        if -status in _ASKED:
            raise OSError(f"the process that read it was ended by {signal.Signals(-status).name}")
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Answer(
            f"ended the process that read it ({how}; it has {most_time(num_bytes, LEAST_S)} s of processor time, and "
            "memory by the size of the file): export it again, in parts if long; `touch` it to have it read again",
            is_lethal=True,
        )

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **_THREADS},
                start_new_session=True,  # Ctrl-C is for whoever waits for it
            )
        return self._process


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    limits = ""
    try:
        num_bytes = Path(request["path"]).stat().st_size
        limits = limit_process(num_bytes, most_time(num_bytes, LEAST_S))
        return {"refusal": ReadingRequest(**request).refusal()}
    except MemoryError:
        return {"refusal": f"takes more than {limits}, which no log of its size does: export it again, in parts"}
    except OSError as error:
        return {"errno": error.errno, "text": error.strerror or str(error), "file": error.filename}
    except Exception as error:  # a reader's fault: it costs this file, and no other
        traceback.print_exc()
        return {"refusal": f"cannot be read ({type(error).__name__}: {error}): export it again, and tell us"}


def main() -> None:
    """Answer one request after the other, each a line of JSON, until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print what they think of a file
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
