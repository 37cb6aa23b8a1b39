"""What users of stream processors type into a search, and the words of an answer to it.

The words are from titles of issues of Kafka Connect, Flink, SeaTunnel and Spark that ask about a source of messages.
"""

from __future__ import annotations

__all__ = ["HITS", "SEARCHES"]

#: How many of the pages that are found a user opens.
HITS = 6
#: Words -> a pattern that has to be in the first screen of one of these pages.
SEARCHES = {
    "airflow": r"DAG",
    "avro": r"fastavro",
    "backlog": r"backlog",
    "backpressure": r"maxMessagesPerTrigger",
    "checkpoint": r"checkpointLocation",
    "consumer_timeout": r"30 minutes",
    "databricks": r"18\.1",
    "dead letter": r"dead.letter",
    "debug logging": r"sitecustomize",
    "delivery limit": r"x-delivery|limit by default|counts for all messages",
    "driver memory": r"1 GiB",
    "duplicates": r"equal messageId|messageId",
    "exactly once": r"once",
    "grafana": r"dashboard",
    "heartbeat": r"interval",
    "json": r"from_json|[Tt]yped columns",
    "kubernetes": r"driver\.memoryOverhead|StatefulSet|kubernetes",
    "lag": r"unacked",
    "latency": r"Half a second|minMessagesPerTrigger|0\.44",
    "merge": r"messageId",
    "oauth token": r"passwordFile",
    "ordering": r"queue order",
    "poison message": r"onUnreadableMessage",
    "prefetch": r"unacknowledged",
    "prometheus": r"9464",
    "protobuf": r"orders_pb2",
    "rate limit": r"maxBytesPerTrigger",
    "replay": r"replayTimeout",
    "rewind": r"cannot be rewound",
    "scaling": r"One Python process",
    "schema registry": r"registry",
    "secrets": r"passwordFile",
    "stop": r"query\.stop\(\)",
    "stuck query": r"Another consumer",
    "throughput": r"durationMs|messages a second",
    "tls": r"tls\.caFile",
}
