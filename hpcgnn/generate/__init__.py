"""The command that writes made graphs, and the bundled real one, as stores."""
