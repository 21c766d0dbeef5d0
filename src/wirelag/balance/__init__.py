"""Balancing by latency: which backend new connections go to, and the share of the load that each gets."""

from wirelag.capture.privileges import no_threads

no_threads()  # before numpy is imported: a thread of a library would keep capabilities that the balancer gives up
