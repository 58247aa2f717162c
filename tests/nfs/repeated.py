"""Answers of an NFS server (version 3) that get lost: what changes names is done twice, and the second answer counts.

A server that remembers what it has answered hides that. It forgets when it is restarted, or has too much to do.

It is a process of its own: who waits for a file may hold the interpreter's lock (numpy does), without which no thread
beside it answers.
"""

import contextlib
import multiprocessing
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path

PROGRAM, VERSION = 100003, 3
REPEATED = {9: "MKDIR", 12: "REMOVE", 13: "RMDIR", 14: "RENAME", 15: "LINK"}
OTHER = 0x80000000  # makes another number of a call
SERVER = ("10.9.1.1", 2049)
LAST = 0x80000000  # fragment of a record


class RepeatingServer:
    """Stands before a server, and counts what it had to do twice."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._listener = socket.create_server((SERVER[0], 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def repeated(self) -> dict[str, int]:
        return self.counts

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                _Connection(self, self._listener.accept()[0])


class _Connection:
    def __init__(self, server: RepeatingServer, near: socket.socket) -> None:
        self._server, self._near = server, near
        self._far = socket.socket()
        self._far.bind((SERVER[0], 0))
        self._far.connect(SERVER)
        self._lost: dict[int, threading.Event] = {}  # number of a call whose answer nobody gets
        for work in (self._calls, self._answers):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, struct.error):
            work()
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _calls(self) -> None:
        for record in _records(self._near):
            number, _, _, program, version, procedure = struct.unpack_from(">6I", record)
            if (program, version) == (PROGRAM, VERSION) and procedure in REPEATED:
                name = REPEATED[procedure]
                self._server.counts[name] = self._server.counts.get(name, 0) + 1
                answered = self._lost[number ^ OTHER] = threading.Event()
                _send(self._far, struct.pack(">I", number ^ OTHER) + record[4:])
                answered.wait()
            _send(self._far, record)

    def _answers(self) -> None:
        for record in _records(self._far):
            (number,) = struct.unpack_from(">I", record)
            if number in self._lost:
                self._lost.pop(number).set()
            else:
                _send(self._near, record)


def _records(stream: socket.socket) -> Iterator[bytes]:
    with stream.makefile("rb") as file:
        record = b""
        while len(mark := file.read(4)) == 4:
            (size,) = struct.unpack(">I", mark)
            record += file.read(size & ~LAST)
            if size & LAST:
                yield record
                record = b""


def _send(stream: socket.socket, record: bytes) -> None:
    stream.sendall(struct.pack(">I", len(record) | LAST) + record)


class _Process(BaseManager):
    """A process in which the server's threads run."""

    RepeatingServer: type[RepeatingServer]


_Process.register("RepeatingServer", RepeatingServer)


@contextlib.contextmanager
def repeating_mount(path: Path) -> Iterator[tuple[Path, RepeatingServer]]:
    """Mount what the clients share by a server that does everything twice."""
    with _Process(ctx=multiprocessing.get_context("forkserver")) as process:
        server = process.RepeatingServer()
        path.mkdir(parents=True)
        options = f"vers=3,nolock,tcp,port={server.port()}"
        mount = ["mount", "-t", "nfs", "-o", options, f"{SERVER[0]}:/mnt/server/home", path]
        subprocess.run(["nsenter", "--net=/run/netns/a", *mount], check=True)
        try:
            yield path, server
        finally:
            subprocess.run(["umount", "--lazy", "--force", path], check=True)
