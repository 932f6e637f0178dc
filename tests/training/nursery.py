"""Lives of training runs in forked processes: starting Python and torch anew takes seconds.

A life is train.py's main with its arguments. It may be told to die at a call of what writes.
"""

import ctypes
import io
import json
import os
import signal
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 180.0  # with what a life leaves behind


def serve() -> None:
    """Live each life that is read in a process group of its own; print its number and, when asked,
    its exit code, or "hung" where it leaves a process behind.

    Until it is asked the number is not another process's, so that it may be killed.
    """
    import train
    import training.run  # noqa: F401

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans are ours to wait for
    while line := sys.stdin.readline():
        life = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            live(train, **life)
        print(pid, flush=True)
        sys.stdin.readline()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code if all_gone(pid) else "hung", flush=True)


def all_gone(group: int) -> bool:
    """Whether all processes of a group end in time; those that do not are killed."""
    deadline, in_time = time.monotonic() + PATIENCE_S, True
    while True:
        try:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                if in_time and time.monotonic() > deadline:
                    in_time = False
                    os.killpg(group, signal.SIGKILL)
                time.sleep(0.01)
        except ChildProcessError:
            return in_time


def live(
    script: Any,
    arguments: list,
    processes: int,
    said: str,
    call: str | None,
    number: int,
    after: bool,
) -> None:
    """Run train.py's main with these arguments; die at the call with this number, if any."""
    from training import processes as launcher
    from utils.cli import run_main

    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.stdin.close()
    if call is not None:
        die_at(call, number, after, of_several=processes > 1)
    choose = launcher.choose_backend

    def forking(*args: Any, **options: Any) -> Any:
        backend, spawn = choose(*args, **options)
        return backend, spawn | {"start_method": "fork"} if spawn else spawn

    launcher.choose_backend = forking
    sys.argv = ["train.py", *arguments, "--nproc_per_node", str(processes)]
    run_main(script.main)
    sys.exit()


def die_at(call: str, number: int, after: bool, *, of_several: bool) -> None:
    """Kill this process before or after a call; at torch.save in the middle of the file.

    Of several processes it is the first that dies: it alone writes.
    """
    import torch

    owner: Any = torch if call.startswith("torch") else os
    name = call.partition(".")[2]
    real, calls = getattr(owner, name), 0

    def deadly(*args: Any, **options: Any) -> Any:
        nonlocal calls
        if of_several and os.environ.get("RANK") != "0":
            return real(*args, **options)
        calls += 1
        if calls < number:
            return real(*args, **options)
        if call == "torch.save":
            payload, file = args
            whole = io.BytesIO()
            real(payload, whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
        elif after:
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, deadly)
