"""The clients that have sessions with each server: every pair is tried, across environments."""
