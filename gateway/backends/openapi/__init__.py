"""Operations of an OpenAPI document as tools."""
