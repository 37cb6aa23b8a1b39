"""The queues of a query: each with its connections and its ledger, and all of them together."""
