"""The runtime: a pure control plane (`core`), the physical side (`program`), and their assembly."""
