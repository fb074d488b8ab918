"""The recipes that come with the package: one TOML per complete run."""
