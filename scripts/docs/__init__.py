"""The documentation site, which combines guides with pages of the other rooms."""
