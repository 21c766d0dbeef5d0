"""For readers, people or programs: tables, files, pages, exporters."""
