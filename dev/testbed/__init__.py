"""Private brokers, publishers, a faulty network, chaos tests: for tests, demo, soak and benchmark. Not shipped."""
