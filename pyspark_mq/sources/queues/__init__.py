"""The queues of a query. Each queue has its own connections and in-flight table; epochs have messages of all queues."""
