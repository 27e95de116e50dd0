"""The configuration: a file for each larger section, and files and overrides that set them."""
