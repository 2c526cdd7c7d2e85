"""A model with its guide, split together: what variational inference reads."""
