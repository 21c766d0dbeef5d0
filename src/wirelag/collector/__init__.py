"""The collector: messages of agents into results, kept in a store and served. `wirelag collect` runs it."""
