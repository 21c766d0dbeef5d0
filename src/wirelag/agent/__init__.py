"""The agent: it keeps a synopsis of each interval at a vantage point, and sends it to the collector."""
