"""The chaos test of writing: a query that writes to a queue while everything around it is killed, and its checker."""
