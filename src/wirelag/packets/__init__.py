"""Packets as values: batches, filters, intervals, groups, the bytes of reference packets."""
