"""OpenAPI documents as tools: what each operation is called, takes and yields, and what a call of it becomes.

It opens nothing and sends nothing: a document in, definitions out; a definition and arguments in, a request out.
"""
