"""Dialects: one small room for each way in which a client speaks about sessions on the wire.

A dialect says where in a message a session is named and how it is written back. It never judges
whether a session is good: that is the tokens' and the protocol's business. Beside them stand those that
a deployment chose, as one (`opted`), and what the bridge seals into a transport id (`upstream`).
"""
