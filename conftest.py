"""Gives tests beside benchmarks, judge, test bed and tools the fixtures and options of those in tests/."""

pytest_plugins = ["tests.plugin"]
