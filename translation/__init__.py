"""Translation of text with a trained model, and its evaluation."""
