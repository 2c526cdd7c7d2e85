"""What speaks against a release, in sentences, and what is to be done about each."""
