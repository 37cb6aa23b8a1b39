"""The queues of a query: each with its connections and its in-flight table, and all of them together."""
