"""Plain networks: ordinary torch modules without any elastic code; what a person takes away."""
