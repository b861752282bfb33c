"""Frameworks: the middleware put in its place in each, and what their handlers are given.

Sessions come as dependencies (`fastapi`, `fastmcp`, `sdk`), handles as the types of arguments (`handle_types`).
To import a room here imports no framework that the package does not depend on; what is found in an application,
is found by its shape and its class names.
"""
