"""A charged run: the account, keys, calibration, facts and progress of every front end."""
