"""The official conformance suite, run against a server of our own."""
