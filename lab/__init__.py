"""The interactive lab: live sessions, widgets, plots and notebooks."""
