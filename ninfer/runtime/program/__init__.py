"""The physical side: pages, images, sequences, units and transactions of one model instance."""
