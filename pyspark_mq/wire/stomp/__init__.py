"""Connects over STOMP 1.2. stomp.py builds the outgoing frames; incoming frames are read by this package."""
