"""Connections: the contract of sessions, which each protocol implements, and the code that keeps sessions alive."""
