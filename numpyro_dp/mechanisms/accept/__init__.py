"""Private acceptance tests: exact log ratios and the bits that are released of them."""
