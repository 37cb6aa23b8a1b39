"""Side by side: this source, bare clients, PerfTest, Flink, Hazelcast and Spark's floor, in one run. Not shipped.

`python -m benchmarks --help` says what can be chosen; `make bench` runs it.
"""
