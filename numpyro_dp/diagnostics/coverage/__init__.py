"""Whether a method's intervals hold what they state, on data simulated from the user's model."""
