"""The documentation site: guides, and how they and the pages of the other rooms become one."""
