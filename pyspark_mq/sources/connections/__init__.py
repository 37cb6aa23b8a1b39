"""Connections: the contracts of protocols, and receivers that keep sessions alive, here or in other processes."""
