"""The control plane: request lifecycle, order, cache policy and publication. Pure: standard library only."""
