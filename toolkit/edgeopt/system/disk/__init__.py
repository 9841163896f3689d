"""Files, archives, links and folders of caches, read within limits and written whole."""
