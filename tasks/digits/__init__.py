"""The digits task: a data set that scikit-learn carries, small enough for one core."""
