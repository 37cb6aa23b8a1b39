"""STOMP 1.2 by stomp.py."""
