"""Crash trials: processes are killed with signal 9 in mid-change, and what they had acknowledged must still hold."""
