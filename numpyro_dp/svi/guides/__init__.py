"""Guides of :class:`~numpyro_dp.VIPS`: each knows its expected statistics and their bounds."""
