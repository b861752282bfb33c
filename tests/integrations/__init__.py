"""The middleware in its place inside of real applications."""
