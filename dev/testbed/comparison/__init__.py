"""Other sources under the same faults as this one: ``make compare``."""
