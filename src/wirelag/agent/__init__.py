"""The agent: at a vantage point, it keeps a synopsis of each interval and sends it to the collector."""
