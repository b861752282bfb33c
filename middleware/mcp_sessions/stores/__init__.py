"""Stores: where it is kept that a session has ended. Nothing is kept for a session that lives."""
