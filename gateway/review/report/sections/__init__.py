"""The sections of the report: one module for one or two of them, with the data of a section and how it is built."""
