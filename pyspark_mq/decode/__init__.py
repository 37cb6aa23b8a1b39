"""From bytes to columns: deliveries as they were received, looked at together. No socket, no session, no clock."""
