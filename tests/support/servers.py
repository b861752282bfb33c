"""Servers of other programs for tests, each in a temporary folder, and what may happen to them."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import anyio
from environments import program

T = TypeVar("T")
HOST = "127.0.0.1"
PATIENCE = 20  # seconds for a server to come up


class Process:
    """A server's process. It is paused and killed with the processes that it has started."""

    _process: subprocess.Popen[bytes]
    starts_as: ClassVar[dict[str, Any]] = {}  # whom

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.options = folder, options

    def command_line(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self, **options: object) -> None:
        """Start it, on the files that it has and with changed options, and wait until it answers."""
        self.options |= options
        self._launch()
        wait_for(self._is_up)

    def _is_up(self) -> bool:
        if self._process.poll() is not None:  # as while something of the one before is left, or another took its port
            self._launch()
        return self.answers()

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command_line(), cwd=self.folder, stdout=log, stderr=log, **self.starts_as
            )

    def stop(self) -> None:
        """End it in order, at once: connections break."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill9(self) -> None:
        """Kill it before it can write or answer anything."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Stop it where it stands: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for pid in (own, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


P = TypeVar("P", bound=Process)


@contextmanager
def running(make: Callable[[Path], P]) -> Iterator[P]:
    """Run a server within the block, which only the process that entered it can leave: forks inherit it."""
    own, folder = os.getpid(), Path(tempfile.mkdtemp(prefix="mcp-sessions-server-"))
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        server = make(folder)
        try:
            server.start()
            yield server
        finally:
            if os.getpid() == own:
                server.kill9()
            else:
                cleanup.pop_all()


def until_exit(server: AbstractContextManager[T]) -> T:
    """Enter a context for the whole run."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(server)


def wait_for(happens: Callable[[], object]) -> None:
    """Wait until something of a server happens, which nothing announces."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


async def until(happens: Callable[[], object]) -> None:
    """Wait as `wait_for`, while others run."""
    await anyio.to_thread.run_sync(wait_for, happens)


def make_certificate(folder: Path) -> Path:
    """Make this machine's certificate, `server.pem` with its key, and return it alone: it is its own authority."""
    authority, file = folder / "ca.pem", folder / "server.pem"
    extensions = f"subjectAltName=IP:{HOST}", "keyUsage=critical,keyCertSign,digitalSignature"
    command = [str(program("openssl")), *"req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split()]
    command += ["-days", "1", "-subj", "/CN=tests", "-keyout", str(file), "-out", str(authority)]
    command += [word for extension in extensions for word in ("-addext", extension)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    file.write_bytes(authority.read_bytes() + file.read_bytes())
    return authority
