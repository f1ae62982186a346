"""One module per command; each exposes one function for the command line to call."""
