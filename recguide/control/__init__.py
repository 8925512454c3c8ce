"""What the learned controller is made of: the cost of a step so far."""
