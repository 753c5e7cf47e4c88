"""Rows as columns: Arrow to the typed text of messages (`rowtext`), and that text to Arrow (`rowcolumns`)."""
