"""Packets from files and interfaces, and the files that wirelag writes."""
