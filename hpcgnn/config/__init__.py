"""The configuration: its sections, and reading them from files and overrides."""
