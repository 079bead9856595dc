"""One file per family, and the catalog of their sizes."""
