"""Which clients have sessions with which servers: every pair is tried, across environments."""
