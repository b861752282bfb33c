"""Sessions as real observability tools show them: two servers, three clients, and what the tools themselves say of it.

    make observe ARGS="[--only phoenix mlflow logfire] [--no-pictures] [--no-wait]"

It is no part of the test suite, since it installs each tool from PyPI into a virtual environment of its own; continuous
integration runs it for Phoenix and Logfire, after the suite.
"""
