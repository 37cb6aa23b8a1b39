"""The chaos test of streams: tasks of Spark read a super stream while nodes, drivers, executors and connections are
lost."""
