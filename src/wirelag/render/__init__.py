"""Output for people and programs: tables, files, pages, exporters."""
