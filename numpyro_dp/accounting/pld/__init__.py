"""How events compose: privacy loss distributions and what is joined to them."""
