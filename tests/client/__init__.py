"""The client: on scripted streams for what happens seldom, and with the frameworks' own clients over HTTP."""
