"""Where packets come from and where answers go: captures, live sockets, stores, exporters."""
