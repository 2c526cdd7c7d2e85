"""What is proved of single events: profiles and certificates that nobody else accounts for."""
