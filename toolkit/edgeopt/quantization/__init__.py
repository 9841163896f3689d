"""INT8 that stays accurate and is really faster: calibrate, choose scales, choose what stays float, place."""
