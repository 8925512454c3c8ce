"""Predictors learned from the decision log: data sets, features, models, calibration, export."""
