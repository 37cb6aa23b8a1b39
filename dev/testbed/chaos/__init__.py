"""A running job, what is done to it, and the audit of what came of it."""
