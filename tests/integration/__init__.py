"""The middleware around the real frameworks, spoken to by raw bytes and by the frameworks' own clients."""
