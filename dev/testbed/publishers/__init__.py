"""Confirmed publishing in bulk, a module for each protocol."""
