"""Private Metropolis kernels: one engine, its proposals and its charges."""
