"""A page to type into, and LibreTranslate's interface for programs: `python serve.py`."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import signal
import socket
import threading
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from configs.serialize import parse_override
from translation.arguments import add_search_arguments, load_from_arguments, require_runs, run_paths
from translation.settings import config_change
from utils.cli import Parser, keep_shapes, positive, report, run_main
from utils.errors import UserError


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Serve trained models to browsers and programs.")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: only this machine)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free port")
    what = "sentences translated at once (default: 32 for each of --workers; 1: each alone)"
    add("--max_batch", type=positive, metavar="N", help=what)
    what = "how long the first of a batch waits for others (default %(default)s)"
    add("--max_wait_ms", type=positive, default=5, metavar="N", help=what)
    what = "sentences that may wait (default %(default)s); a request beyond is answered 503"
    add("--max_waiting", type=positive, default=512, metavar="N", help=what)
    what = "limit of one request (default %(default)s)"
    add("--max_chars", type=positive, default=5000, metavar="N", help=what)
    add("--timeout", type=positive, default=60, metavar="SECONDS", help=what)
    what = "a name by which a proxy may ask for this server, such as example.org; repeatable"
    add("--allowed_host", action="append", default=[], metavar="NAME", help=what)
    what = "a site whose scripts may read the answers, such as https://example.org; repeatable"
    add("--cors", action="append", default=[], metavar="ORIGIN", help=what)
    add_search_arguments(parser, several="each is served under its name; the first is the default")
    args = parser.parse_args(argv)
    if not 0 <= args.port < 2**16:
        raise UserError(f"--port {args.port}: give a number from 0 to 65535")
    host = r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?"
    for origin in args.cors:  # compared with what browsers send, letter by letter
        if not re.fullmatch(rf"\*|[a-z][a-z0-9+.-]*://{host}", origin):
            remedy = "scheme and host in small ASCII letters, such as https://example.org"
            raise UserError(f"--cors {origin}: only {remedy}")
        if re.fullmatch(r"http://.*:80|https://.*:443", origin):
            raise UserError(f"--cors {origin}: without its port, which browsers leave out")
    for name in args.allowed_host:
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise UserError(f"--allowed_host {name}: only a name, such as example.org")
    return args


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError for a port in use, and for another machine's host."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address, family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        said = f"--host {host} --port {port}: {why}"
        other = "another --host: a name or address of this machine"
        if number in (errno.EADDRINUSE, errno.EACCES):
            other = "another --port, or 0 for any that is free"
        raise UserError(f"{said}; give {other}") from error


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    change = config_change(None, None, args.overrides)
    require_runs(args)
    keep_shapes(256)
    with listen(args.host, args.port) as listening:
        import uvicorn

        from serving.app import Limits, build_app
        from serving.tasks import Served

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                if self.should_exit and sig == signal.SIGINT:  # a second Ctrl-C
                    os._exit(report(KeyboardInterrupt()))
                if not self.should_exit:
                    end.start()
                super().handle_exit(sig, frame)

        given = dict(map(parse_override, args.overrides))
        models: dict[str, Served] = {}
        for path in run_paths(args):
            loaded, translator = load_from_arguments(args, change, path=path)
            if translator.decode.mbr is None and "decode.n_best" in given:
                raise UserError("--n_best is for --mbr: a request says how many it wants")
            # A link keeps its own name, so that what it leads to can be exchanged.
            named = path.absolute() if path.is_symlink() else path.resolve()
            name = name_of(named, loaded.run.path.resolve())
            models[unused(name, models)] = Served(loaded, translator)
        limits = Limits(
            max_batch=args.max_batch or 32 * args.workers,
            max_wait=args.max_wait_ms / 1000,
            max_waiting=args.max_waiting,
            max_chars=args.max_chars,
            timeout=args.timeout,
        )
        where = f"[{args.host}]" if ":" in args.host else args.host
        address, port, *_ = listening.getsockname()
        # Reached from other machines, it may have any name, unless it is told which.
        local = ipaddress.ip_address(address).is_loopback
        own = ["127.0.0.1", "localhost", "[::1]", where]
        hosts = [*own, *args.allowed_host] if local or args.allowed_host else ["*"]
        app = build_app(models, limits, hosts=hosts, origins=args.cors)
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="on",
            server_header=False,
            http="h11",
            h11_max_incomplete_event_size=12 * args.max_chars + 2**16,  # texts in a query
            use_colors=False,  # else it checks standard output, which may be closed
            timeout_graceful_shutdown=2 * args.timeout,  # for a body, and then for its answer
            timeout_keep_alive=75,  # longer than a proxy's, which would send into a closed one
        )
        end = threading.Timer(3 * args.timeout, os._exit, (1,))  # of a search that never ends
        end.daemon = True
        print(f"{', '.join(models)}: http://{where}:{port}/  (Ctrl-C ends it)", flush=True)
        Server(config).run(sockets=[listening])
        end.cancel()


def name_of(given: Path, run: Path) -> str:
    """The run's name if `given` is or lies in it; else `given`'s, as for a Marian model."""
    name = (run if given.is_relative_to(run) else given).name
    return name.encode("utf-8", "backslashreplace").decode()  # it may not be valid UTF-8


def unused(name: str, names: Mapping[str, object]) -> str:
    """The name, with a number if it is in use."""
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name}_{number}"
    return free


if __name__ == "__main__":
    run_main(main)
