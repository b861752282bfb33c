"""The environments that the suite runs in, the lanes in which it runs there, and the gate that runs all checks.

Nothing here is imported by a test but by the tests of these very files; `python3 tests/matrix` starts it. Only the
standard library is used, so any Python from 3.10 does; nothing is installed outside the virtual environments that are
made in the repository's folder.
"""
