"""Training the draft adapter by self-distillation: the frozen model's own dialogues teach its own draft rows."""
