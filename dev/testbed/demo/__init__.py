"""The demo, ``python -m testbed.demo``, and its dashboard."""
