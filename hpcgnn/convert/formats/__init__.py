"""The formats that are read, a file each; `registry` lists them."""
