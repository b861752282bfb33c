"""Frameworks: the middleware put in its place in each, and what their handlers are given.

Sessions come as dependencies (`fastapi`, `fastmcp`, `sdk`), handles as the types of arguments (`handle_types`). No
framework but Starlette is imported with a module here: applications are known by their shape and class names.
"""
