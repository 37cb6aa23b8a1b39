"""Connections to the broker: the base class of sessions, which each protocol implements, and code that reconnects."""
