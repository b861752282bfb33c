"""Sessions in real observability tools: two replicas of four kinds of server, and what the tools themselves show.

    make observe ARGS="[--only phoenix mlflow logfire] [--no-pictures] [--no-wait]"

It runs after the test suite, since it installs each tool from PyPI into a virtual environment of its own; continuous
integration runs it without pictures.
"""
