"""Ways to draw once from a posterior, each with the event that one draw costs."""
