"""Frameworks whose applications can be looked into: how the middleware finds its place in each.

Nothing here imports a framework that the package does not depend on; what is found, is found by
its shape and its class names.
"""
