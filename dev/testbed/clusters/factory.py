"""A cluster of private brokers by the name of the option `broker`."""

from __future__ import annotations

from testbed.clusters.activemq import ActiveMqPair
from testbed.clusters.artemis import ArtemisPair
from testbed.clusters.cluster import Cluster
from testbed.clusters.rabbitmq import RabbitCluster
from testbed.process import NodeError

__all__ = ["CLUSTERS", "make_cluster"]

#: Brokers that there is a cluster of.
CLUSTERS = ("rabbitmq", "artemis", "activemq")


def make_cluster(broker: str, version: str = "") -> Cluster:
    """A cluster with all the protocols its brokers have, not started.

    Args:
        broker: one of :data:`CLUSTERS`.
        version: of RabbitMQ, as its nodes take it; of the others there is one.

    Raises:
        NodeError: what it needs is not installed.
    """
    if broker == "rabbitmq":
        return RabbitCluster(version=version)
    if version:
        raise NodeError(f"clusters of {broker!r} are of one version here, not of {version!r}")
    if broker == "artemis":
        return ArtemisPair()
    if broker == "activemq":
        return ActiveMqPair()
    raise NodeError(f"there is no cluster of {broker!r}")
