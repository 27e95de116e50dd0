"""How the bundled debian-packages graph was made from a Packages index."""
