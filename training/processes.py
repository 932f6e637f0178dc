"""How many processes train, on which devices, how they communicate, and how they end together."""

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import ignite.distributed as idist
import torch
from torch.multiprocessing.spawn import ProcessExitedException

from utils.cli import run_main, signals_to, stops
from utils.errors import UserError, one_line
from utils.machine import resolve_device

logger = logging.getLogger(__name__)

# How long the other processes wait for the first one to report an error that all have.
SPEAKS_FIRST_S = 5.0
# How long they wait for its work at most: it alone downloads, learns the tokenizer and fills the
# cache. NCCL's own ten minutes are too few for that.
PATIENCE = timedelta(hours=2)


class LostError(UserError):
    """Another process cannot be reached."""


def run_processes(work: Callable[[], None], *, nproc_per_node: int, device: str) -> None:
    """Run `work()` here, in nproc_per_node spawned processes, or as one of torchrun's.

    `work` can be pickled. A user's mistake in one of several processes ends all of them with one
    line and exit code 2. Signals reach all of them.
    """
    backend, spawn = choose_backend(nproc_per_node, device)
    set_here = "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"
    before = {name: os.environ[name] for name in set_here if name in os.environ}
    if backend is not None:
        os.environ.pop("SLURM_JOB_ID", None)  # ignite would take the ranks of Slurm's tasks
    if backend == "gloo":
        # ignite would take GPU number LOCAL_RANK, which may not exist, and add up on it.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    spawn_log = logging.getLogger("torch.multiprocessing.spawn")
    spawn_log.addFilter(lambda record: record.levelno >= logging.ERROR)
    try:
        if spawn:
            # With a thread for each core, processes would wait for each other at every product.
            share = max(1, torch.get_num_threads() // nproc_per_node)
            os.environ.setdefault("OMP_NUM_THREADS", str(share))
            # A signal to the parent alone must reach the workers; two from a terminal count as one.
            with signals_to(_pass_on, *stops()):
                idist.spawn(backend, _one_of_several, args=(work,), timeout=PATIENCE, **spawn)
        elif backend is not None:
            with _lost_told():
                idist.initialize(backend, timeout=PATIENCE)
            _one_of_several(idist.get_local_rank(), work)
        else:
            work()
    except ProcessExitedException as error:
        if error.exit_code >= 0:  # the process has said why
            sys.exit(error.exit_code)
        if error.exit_code == -signal.SIGINT:
            raise KeyboardInterrupt from error
        ended = f"process {error.error_index} was ended by {error.signal_name}"
        print(f"error: {ended}", file=sys.stderr)
        sys.exit(128 - error.exit_code)
    finally:  # the calling program may start other processes
        for name in set_here:
            os.environ.pop(name, None)
        os.environ.update(before)


def choose_backend(nproc_per_node: int, device: str) -> tuple[str | None, dict[str, Any]]:
    """Backend and arguments for ignite's `idist.spawn`; `device` as in train.device.

    Under torchrun the processes exist already; with nproc_per_node > 1 they are spawned; otherwise
    there is one, without a process group. nccl where every process has a GPU of its own, gloo on
    CPUs. Raises UserError for another device, and where there are too few GPUs.
    """
    under_torchrun = "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")  # of srun
    if not under_torchrun and tasks != "1":
        said = "Slurm started %s tasks, and each of them trains a model of its own: to train one "
        logger.warning(said + "together, give each its rank (docs/cluster.md)", tasks)
    if not under_torchrun and nproc_per_node == 1:
        return None, {}
    if under_torchrun and nproc_per_node > 1:
        raise UserError(
            f"--nproc_per_node {nproc_per_node}: torchrun sets how many; give it to torchrun"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if under_torchrun else nproc_per_node
    # Not is_available: after it CUDA_VISIBLE_DEVICES has no effect any more.
    n_gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device.startswith("cuda") and (n_gpus < local or device != "cuda"):
        raise UserError(
            f"train.device = {device!r} with {local} processes: they take one GPU each, and there "
            f"are {n_gpus}; use --set train.device=cuda{' with fewer processes' * (n_gpus < local)}"
            ", or --set train.device=cpu"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"train.device = {device!r} with {local} processes: give auto, cpu or cuda")
    backend = "nccl" if device != "cpu" and n_gpus >= local else "gloo"
    if backend == "gloo" and n_gpus and os.environ.get("LOCAL_RANK", "0") == "0":
        said = "train.device = 'auto': %d processes, but GPUs for %d: they train on the CPU"
        logger.warning(said, local, n_gpus)
    if under_torchrun:
        return backend, {}
    # A free port, so that two trainings can run on one machine.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return backend, {"nproc_per_node": nproc_per_node, "start_method": "spawn", "master_port": port}


def require_alike(given: Mapping[str, Any]) -> None:
    """Raises UserError, in every process, if one has another value than the first."""
    [first], *others = idist.all_gather([dict(given)])
    for rank, [other] in enumerate(others, start=1):
        for name in [*first, *other]:
            here, there = first.get(name), other.get(name)
            if here != there:
                raise UserError(
                    f"{name}: {here!r} in process 0, {there!r} in process {rank}; all machines "
                    "need the same command, the same text, and one folder for runs"
                )


def process_device(name: str) -> torch.device:
    """The device of this process, for train.device = `name`."""
    if idist.get_world_size() > 1:
        name = str(idist.device()) if idist.backend() == "nccl" else "cpu"
    return resolve_device(name)


def _one_of_several(_: int, work: Callable[[], None]) -> None:
    """Work, and end the process without the interpreter's shutdown.

    During that, a gloo thread may free the last tensor that it added up, which aborts the process
    (pull request 179291 of pytorch): exit code 134 in place of 143, after all was saved.
    """
    code = 0
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see the end of train.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _guarded(work)
        idist.finalize()
    except SystemExit as ended:
        code = int(ended.code or 0)
    gc.collect()  # loaders, whose queues would be reported as leaked
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def _lost_told() -> Iterator[None]:
    """Turns errors of gloo and torch's store about a process that has gone into LostError."""
    try:
        yield
    except RuntimeError as error:
        of_store = isinstance(error, torch.distributed.DistNetworkError)
        if of_store or "gloo/transport" in str(error):
            raise LostError(
                f"another process has ended or is unreachable ({one_line(error)}): see its output; "
                "GLOO_SOCKET_IFNAME=NAME names the network interface between machines"
            ) from error
        raise


def _guarded(work: Callable[[], None]) -> None:
    """Let the first process report an error that several have; the others do if it is silent.

    Their error may be only an effect of its end.
    """

    def job() -> None:
        try:
            with _lost_told():
                work()
        except (Exception, KeyboardInterrupt) as error:
            if idist.get_rank() > 0 or isinstance(error, LostError):
                time.sleep(SPEAKS_FIRST_S)  # the launcher ends this process when the first has gone
            raise

    run_main(job)


def _pass_on(number: int, frame: Any) -> None:
    children = multiprocessing.active_children()
    for child in children:
        if child.pid is not None:
            os.kill(child.pid, number)
    if not children:  # none has begun
        sys.exit(128 + number)
