"""Frameworks: the middleware put in its place in each, and what their handlers are given.

Sessions come as dependencies (`fastapi`, `fastmcp`), handles as the types of arguments (`handles`). No framework but
Starlette is imported with a module here: applications are known by their shape and class names.
"""
