"""What becomes of the calls of many clients while their workers are killed."""
