"""Connections: the contracts of protocols, and what keeps sessions alive, here or in other processes."""
