"""What the middleware costs, measured side by side with what others cost: `make bench`."""
