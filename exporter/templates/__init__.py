"""Chat templates: found and rendered with jinja2, and compiled to the `chat.*` metadata."""
