"""Receives over STOMP 1.2."""
