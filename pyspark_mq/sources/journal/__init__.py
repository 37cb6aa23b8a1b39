"""The journal: what is remembered, its lists, and its files."""
