"""Mutated inputs against independent oracles, for as long as one likes: `python -m tests.tools.fuzz --help`."""
