"""The model's side, in a process of its own. What decides stands here, what does in the folders below."""
