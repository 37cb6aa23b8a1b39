"""Connections: the contract of protocols, and what keeps sessions alive."""
