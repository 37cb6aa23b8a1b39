"""Private brokers, publishers, a faulty network, storms: for tests, demo, soak and benchmark. Not shipped."""
