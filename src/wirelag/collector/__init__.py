"""The collector: it turns agents' messages into results, stores them and serves them. `wirelag collect` runs it."""
