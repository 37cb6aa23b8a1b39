"""The loss of power: ``make power``."""
