"""Clusters of Spark on this machine, and the versions that are tested."""
