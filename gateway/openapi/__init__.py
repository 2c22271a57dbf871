"""OpenAPI documents as tools: what each operation is called, takes and yields, and what a call of it becomes on the wire.

It opens nothing and sends nothing: bytes of a document in, definitions out; a definition and arguments in, a request out.
"""
