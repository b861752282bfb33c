"""What tests rely on: the servers that they start live as long as the process that started them."""

from functools import partial
from multiprocessing import get_context

import pytest
import redis_servers


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # since Python 3.12
def test_a_forked_process_leaves_servers_running() -> None:
    """A fork drops what it inherits: since Python 3.13 it clears `atexit`, which leaves the blocks of servers."""
    serving = redis_servers.serving()
    server = serving.__enter__()
    try:
        child = get_context("fork").Process(target=partial(serving.__exit__, None, None, None))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert server.folder.exists()
        assert server.answers()
    finally:
        serving.__exit__(None, None, None)
