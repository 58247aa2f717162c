"""`make deploy` and `make undeploy`: bring an installation up, end exactly what was started, say how it is."""

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from flows.compatibility import require_compatible
from flows.deployment import runs
from flows.deployment.installation import (
    CLIENT_AUTH_VARIABLE,
    DATABASE_VARIABLE,
    HOME_VARIABLE,
    HOST,
    NOTIFY_VARIABLE,
    OLD_DATABASE_VARIABLE,
    POOL,
    PREFECT,
    SERVER_AUTH_VARIABLE,
    SYNTHETIC,
    Installation,
    find_prefect_file,
    warn_of_database,
    without_passwords,
)
from flows.deployment.overdue import find_overdue, read_nights
from flows.deployment.runs import DEPLOY, WORKER_VARIABLE, has_worker, run_ids, run_processes
from flows.deployment.service import (
    NOTES,
    UNKNOWN,
    Service,
    end,
    homes_of_servers,
    is_alive,
    other_machine,
    servers_text,
    this_machine,
)
from flows.embedded.loopback import PATIENT_ANSWER_S, answers, is_free
from flows.embedded.server import START_TIMEOUT_S, START_TIMEOUT_VARIABLE
from flows.log_tail import last_lines
from kdgat.base import UserError, wait_until, write_json_atomically
from kdgat.base.environment import PYTHON_OPTIONS
from kdgat.canbus.catalog import load_catalog
from kdgat.container.process import signals_as_exit
from kdgat.stage.owner import Owner, own

TAKE_OVER_VARIABLE: Final = "KDGAT_TAKE_OVER"  # names the machine whose programs are over
PORTS_TRIED: Final = 100
# What a person's own Prefect has to do with: profiles lie in another home, the old name of a setting beats the new one.
FOREIGN: Final = (
    "PREFECT_PROFILE",
    "PREFECT_API_KEY",
    OLD_DATABASE_VARIABLE,
    SERVER_AUTH_VARIABLE,
    CLIENT_AUTH_VARIABLE,
)

Log = Callable[[str], None]


def up(log: Log) -> Installation:
    """Start what does not run yet, update what the server holds, and leave what runs alone.

    Raises:
        UserError: if an installed package breaks the server, or its schedules.
        UserError: naming what is in the way, with the last lines of the log concerned, or the machine on which it runs.
        StageBusyError: if another command works on this installation.
    """
    require_compatible()
    here = Installation.find()
    here.make_home()
    _require_here(here, "nothing was started", "make deploy")
    with _alone(here), signals_as_exit(), contextlib.ExitStack() as started:
        here = _with_free_port(here)
        _refuse_changes(here)
        _prepare(here)
        try:
            _ensure_server(here, started, log)
            _fill_server(here, log)
            _ensure_worker(here, started, log)
        except BaseException:
            log("what was started by this command is ended again")
            raise
        # What ran already may have been noted by an earlier version, which names no machine.
        for service in (Service(here.home, name) for name in NOTES[:2]):
            write_json_atomically(service.note_path, {**service.note(), **this_machine()})
        started.pop_all()  # it stays
    if warning := warn_of_database(here.database) or here.describe_moved_database():
        log(warning)
    if not here.auth:
        log("note: every user of this machine can start runs in your name: KDGAT_AUTH=1 asks them for a string")
    look = f"{HOME_VARIABLE}={shlex.quote(str(here.home))} {shlex.quote(sys.executable)} -P -m flows.deployment check"
    log(f"note: a server that is down tells nobody. Cron does, by this line in `crontab -e`: 0 8 * * * {look}")
    return here


def update(log: Log) -> None:
    """Bring what a server that runs holds up to date; for a server that systemd keeps, or somebody else.

    Raises:
        UserError: if the server does not answer.
        StageBusyError: if another command works on this installation.
    """
    here = Installation.find()
    _require_here(here, "nothing was updated", "python -m flows.deployment update")
    if not answers(here.url, here.auth_string, PATIENT_ANSWER_S):
        raise UserError(f"{here.url} does not answer: start the server first, by `make deploy` or by systemd")
    with _alone(here):
        _prepare(here)
        write_json_atomically(Service(here.home, "update").note_path, this_machine())
        _fill_server(here, log)
    if here.auth and answers(here.url):
        log("note: the server that runs asks for no string, it was started before there was one: start it again")


def down(log: Log) -> None:
    """End worker, its runs and the server; database, registry and outputs stay.

    Raises:
        UserError: if there is nothing to end here, with the installations whose servers run.
        StageBusyError: if another command works on this installation.
    """
    here = Installation.find()
    elsewhere = servers_text("{variable}={home} make undeploy")
    if not here.home.is_dir():
        raise UserError(f"nothing was ended: {_nothing_here(here)}{elsewhere}")
    _require_here(here, "nothing was ended", "make undeploy")
    with _alone(here):
        worker, server = Service(here.home, "worker"), Service(here.home, "server")
        if HOME_VARIABLE not in os.environ and elsewhere and not (worker.note() or server.note()):
            raise UserError(f"nothing was ended: nothing of {here.home} runs, and {_not_set()}{elsewhere}")
        runs.stop_runs(here.home, log, DEPLOY)
        for service in (worker, server):
            process = service.process()
            if process is None:
                log(f"{service.name}: does not run")
            else:
                in_order = end(process)
                log(f"{service.name}: ended (pid {process.pid}){'' if in_order else ', by force'}")
            service.forget()
            if service is worker:
                runs.stop_runs(here.home, log, DEPLOY)  # one may have begun while the others were waited for
        Service(here.home, "update").forget()
    log(f"kept: database, registry and outputs, see {here.path}")


def stop_runs(log: Log) -> None:
    """Let all runs save and stop, whoever started their worker; what systemd does before it ends one."""
    runs.stop_runs(Installation.find().home, log)


def status(log: Log) -> bool:
    """State how the installation is; true if server and worker run."""
    here = Installation.find()
    if not here.home.is_dir():
        log(f"nothing is deployed: {_nothing_here(here)}{servers_text('{variable}={home} make deployed')}")
        return False
    log(f"home     {here.home}")
    if host := other_machine(here.home):
        log(f"it runs on another machine, of which nothing is seen here; as its notes have it, on {host}: ask there")
        return False
    is_up = _is_up(here)
    both = True
    for name in ("server", "worker"):
        service = Service(here.home, name)
        process = service.process()
        if process is None:
            died = f", though it was started and not ended; log: {service.log_path}" if service.note() else ""
            log(f"{name:8} does not run{died}")
            both = False
        else:
            where = f", {here.url}{'' if is_up else ' (does not answer)'}" if name == "server" else ""
            log(f"{name:8} runs, pid {process.pid}{where}; log: {service.log_path}")
    under_way = run_processes(here.home)
    if under_way:
        log(f"runs     {len(under_way)}: pid {', '.join(str(process.pid) for process in under_way)}")
    if is_up:
        _take_over(here)
        _log_deployments(log)
    elif HOME_VARIABLE not in os.environ and (elsewhere := servers_text("{variable}={home} make deployed")):
        log(elsewhere.removeprefix("; "))
    for sentence in find_overdue(here.home):
        log(sentence)
    return both and is_up


def _is_up(here: Installation) -> bool:
    # Another installation's server may answer there, one that asks for no string.
    home = homes_of_servers().get(here.port)
    is_ours = home is not None and home.resolve() == here.home.resolve()
    return is_ours and answers(here.url, here.auth_string, PATIENT_ANSWER_S)


def check_nights(log: Log) -> bool:
    """Tell people of nights that do not come, without a server if there is none; true if all is well."""
    here = Installation.find()
    is_up = _is_up(here)
    if is_up:
        _take_over(here)
        from prefect.client.orchestration import get_client

        from flows.deployment.server_content import note_nights

        with get_client(sync_client=True) as client:
            note_nights(client, here.home)  # somebody may have paused or woken one
    if not read_nights(here.home):
        return True
    found = find_overdue(here.home)
    found += [] if is_up else [f"the server at {here.url} does not answer: no night will come"]
    found += [] if has_worker(here.home) else ["no worker runs: no night will come"]
    for sentence in found:
        log(sentence)
    if found and here.notify:
        from flows.deployment.notification import send

        hint = f"{socket.gethostname()}, {here.home}: `make deploy` starts what does not run"
        if not send(here.notify, "nights do not come", "\n".join((*found, hint))):
            log(f"{NOTIFY_VARIABLE}: nobody was told, as the message could not be sent from here")
    return not found


def next_commands(here: Installation) -> str:
    """Write what a person does after `make deploy`, to be given as it stands in a new shell."""
    # The file has DO_NOT_TRACK, too: Prefect's own commands do not ask whether they may collect usage data.
    reach = f"set -a; . {shlex.quote(str(here.path))}; set +a"
    of_home = f"{HOME_VARIABLE}={shlex.quote(str(here.home))} " if HOME_VARIABLE in os.environ else ""
    ask = f"{of_home}{shlex.quote(sys.executable)} -m flows.deployment auth"
    key = f"         asks for a string, which this shows: {ask}\n" if here.auth else ""
    datasets = load_catalog(None)
    present = [name for name, entry in datasets.items() if entry.folder_in(here.data_root).is_dir()]
    train = f"prefect deployment run can/{next(iter(present), SYNTHETIC).replace('_', '-')} --watch"
    synth = f"kdgat data synth --out {shlex.quote(str(here.data_root))} --dataset {SYNTHETIC}"
    lines = [
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        reach,
        *([] if present else [f"{synth:55} # no dataset is there yet: simulates one"]),
        f"{train:55} # trains, and prints its log",
        f"{train} --param preset=full --param 'overrides=[\"training.max_epochs=5\"]'",
    ]
    commands = "".join(f"  {line}\n" for line in lines)
    return f"\nUI       {here.url.removesuffix('/api')}\n{key}home     {here.home}\n\n{commands}"


def _nothing_here(here: Installation) -> str:
    return f"there is no {here.home}" + ("" if HOME_VARIABLE in os.environ else f", and {_not_set()}")


def _not_set() -> str:
    return f"{HOME_VARIABLE} is not set"


def _require_here(here: Installation, what: str, command: str) -> None:
    """Refuse to work on an installation that another machine runs, of which nothing can be seen from here."""
    while host := other_machine(here.home):
        if os.environ.get(TAKE_OVER_VARIABLE) != host:
            where = "the machine that an earlier version did not note" if host == UNKNOWN else host
            raise UserError(
                f"{what}: {here.home} is shared, and what belongs to it runs on {where}. Give `{command}` there, or "
                f"`make undeploy` there before `make deploy` here. If {where} is gone, or nothing of it runs there any "
                f"more, {TAKE_OVER_VARIABLE}={host} make deploy starts it here"
            )
        for service in (Service(here.home, name) for name in NOTES):
            if service.note().get("host", UNKNOWN) == host:
                service.forget()


def _alone(here: Installation) -> contextlib.AbstractContextManager[Owner]:
    return own(here.home / "deploy.lock", here.home / "deploy.json")


def _with_free_port(here: Installation) -> Installation:
    """Keep the port of a server that runs, and one that was asked for; otherwise take the next that is free."""
    if Service(here.home, "server").process() is not None or is_free(here.port):
        return here
    if "KDGAT_PORT" in os.environ or here.path.is_file():
        raise UserError(
            f"KDGAT_PORT={here.port} is taken by another program: give a free one, "
            f"as KDGAT_PORT={_free_port(here.port)} make deploy"
        )
    return here.model_copy(update={"port": _free_port(here.port)})


def _free_port(taken: int) -> int:
    for port in range(taken + 1, min(taken + PORTS_TRIED, 65536)):
        if is_free(port):
            return port
    raise UserError(f"no port from {taken} on is free: set KDGAT_PORT")


def _refuse_changes(here: Installation) -> None:
    """Refuse what a server that runs cannot take over while it runs."""
    service = Service(here.home, "server")
    if service.process() is None:
        return
    note = service.note()
    for variable, was, shall in (
        ("KDGAT_PORT", note.get("port"), here.port),
        (DATABASE_VARIABLE, note.get("database"), without_passwords(here.database)),
        ("KDGAT_AUTH", int(note.get("auth", False)), int(here.auth)),
    ):
        if was != shall:
            raise UserError(
                f"{variable}={shall}: the server that runs was started with {was}: "
                "`make undeploy` first, then `make deploy`"
            )


def _take_over(here: Installation) -> None:
    """Give this process the environment of all that it starts: the programs of this Python first, no proxy for here.

    Prefect reads it when it is imported, and must not be before. What Prefect starts runs no modules of the folder
    where it stands.
    """
    for name in (*FOREIGN, *PYTHON_OPTIONS):
        os.environ.pop(name, None)
    no_proxy = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), HOST, "localhost")))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    os.environ.update(
        {**here.environment(), "PATH": path, "PYTHONSAFEPATH": "1", "NO_PROXY": no_proxy, "no_proxy": no_proxy}
    )


def _prepare(here: Installation) -> None:
    find_prefect_file(here.checkout)  # before a server is started for it
    _take_over(here)
    from flows.deployment.notification import check_address
    from flows.deployment.server_content import check_schedule

    check_schedule(here.nightly_cron, here.timezone)
    check_address(here.notify)
    here.write()


def _ensure_server(here: Installation, started: contextlib.ExitStack, log: Log) -> None:
    service = Service(here.home, "server")
    process = service.process()
    if process is None:
        facts = {"port": here.port, "database": without_passwords(here.database), "auth": here.auth}
        command = [*PREFECT, "server", "start", "--host", HOST, "--port", str(here.port)]
        started.callback(_undo, service)
        process = service.start(command, os.environ, here.home, **facts)
        log(f"server: starting on {here.url} ...")
    limit_s = float(os.environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_S))
    message = f"the server does not answer within {limit_s:g} s ({START_TIMEOUT_VARIABLE} gives it more)"
    _wait(lambda: answers(here.url, here.auth_string), process, limit_s, message, service)
    log(f"server: runs, pid {process.pid}")


def _fill_server(here: Installation, log: Log) -> None:
    """Make what the server has to hold."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType

    from flows.deployment import server_content
    from flows.deployment.notification import ensure_notifications
    from flows.deployment.server_content import keeping_schedules

    with get_client(sync_client=True) as client:
        server_content.ensure_pool(client)
        log("deployments: creating or updating ...")
        with keeping_schedules(client, here.home / "schedules.json"):
            server_content.apply_prefect_file(here.checkout, os.environ, here.home / "deploy.log", log)
        server_content.mark_missing_data(client)
        server_content.limit_datasets(client)
        server_content.ensure_automation(client)
        if ensure_notifications(client, here.notify, server_content.note_nights(client, here.home)):
            log(f"{NOTIFY_VARIABLE}: people are told of nights that fail, do not come, refuse files or promote a model")
        # A run that is pending has no process yet, if there is a worker.
        states = [StateType.RUNNING, StateType.CANCELLING, *([] if has_worker(here.home) else [StateType.PENDING])]
        for name in server_content.crash_lost_runs(client, lambda: run_ids(here.home), states):
            log(f"run {name}: its process is gone, marked as crashed; the next run goes on from its checkpoints")
        server_content.free_datasets(client)
    _log_deployments(log)


def _ensure_worker(here: Installation, started: contextlib.ExitStack, log: Log) -> None:
    from prefect.client.orchestration import get_client

    from flows.deployment.server_content import is_worker_online

    service, name = Service(here.home, "worker"), socket.gethostname()
    process = service.process()
    if process is None:
        command = [*PREFECT, "worker", "start", "--pool", POOL, "--type", "process", "--name", name]
        started.callback(_undo, service)
        process = service.start(command, {**os.environ, WORKER_VARIABLE: DEPLOY}, here.checkout)
    message = f"the worker does not report within {START_TIMEOUT_S:g} s"
    with get_client(sync_client=True) as client:
        _wait(lambda: is_worker_online(client, name), process, START_TIMEOUT_S, message, service)
    log(f"worker: runs, pid {process.pid}")


def _log_deployments(log: Log) -> None:
    from prefect.client.orchestration import get_client

    from flows.deployment.server_content import describe_deployments

    with get_client(sync_client=True) as client:
        for line in describe_deployments(client):
            log(line)


def _undo(service: Service) -> None:
    """End what was started, or was about to be when a signal came."""
    process = service.process()
    if process is not None:
        end(process)
    service.forget()


def _wait(
    condition: Callable[[], bool], process: psutil.Process, limit_s: float, message: str, service: Service
) -> None:
    in_time = wait_until(lambda: condition() or not is_alive(process), limit_s)
    problem = message if is_alive(process) else f"the {service.name} ended at its start"
    if not in_time or problem != message:
        raise UserError(f"{problem}. Its log {service.log_path} ends with:\n{last_lines(service.log_path)}")
