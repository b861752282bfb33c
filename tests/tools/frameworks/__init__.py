"""What agent frameworks' clients get: the programs of `docs/clients.md`, each tried in an environment of its own."""
