"""An outside checker of histories. It shares no code with the package, the test bed or the tests."""
